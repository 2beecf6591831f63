"""What a checker's errors say about who is guilty, and when they do not say it."""

from __future__ import annotations

from pytest_rlstability.diagnose.memcheck import Complaint, read_errors

PYTHON, LOADER, LIBC = "/usr/lib/libpython3.11.so.1.0", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"
PRELOAD, GAME = "/usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so", "/game/_engine.cpython-311.so"
CTYPES, NUMPY = "/usr/lib/python3.11/lib-dynload/_ctypes.so", "/venv/site-packages/numpy/_core/_multiarray_umath.so"
GOMP = "/venv/torch.libs/libgomp-a34b3233.so.1"
LIVE = "Address 0x1 is 0 bytes after a block of size 24 alloc'd"
FREED = "Address 0x1 is 0 bytes inside a block of size 48 free'd"
NOWHERE = "Address 0x1 is not stack'd, malloc'd or (recently) free'd"

Frame = tuple[str, str, str]


def stack(*frames: Frame, directory: str = "/game") -> str:
    parts = []
    for function, place, library in frames:
        file, _, line = place.partition(":")
        where = f"<dir>{directory}</dir><file>{file}</file><line>{line}</line>" if place else ""
        named = f"<fn>{function}</fn>" if function else ""
        parts.append(f"<frame><ip>0x1</ip><obj>{library}</obj>{named}{where}</frame>")
    return f"<stack>{''.join(parts)}</stack>"


def error(kind: str, *parts: str) -> str:
    return f"<error><unique>0x0</unique><kind>{kind}</kind><what>Invalid</what>{''.join(parts)}</error>"


def aux(text: str) -> str:
    return f"<auxwhat>{text}</auxwhat>"


EVAL = ("_PyEval_EvalFrameDefault", "ceval.c:1", PYTHON)
OVERRUN = error(
    "InvalidWrite", stack(("memcpy", "", PRELOAD), ("fill", "rows.c:4", GAME), EVAL),
    aux(LIVE), stack(("malloc", "", PRELOAD), ("make", "rows.c:2", GAME)),
)  # fmt: skip
LOADERS = error("InvalidRead", stack(("is_dst", "", LOADER), ("_dl_map_object", "dl-load.c:1", LOADER)), aux(LIVE))
OVERREAD = error("InvalidRead", stack(("scan", "scan.c:8", GAME)), aux(LIVE))
STALE = error("InvalidRead", stack(("draw", "draw.c:8", GAME)), aux(FREED), stack(("free", "", PRELOAD)))
WILD = error("InvalidWrite", stack(("heal", "actor.c:8", GAME)), aux(NOWHERE))


def first(*errors: str, crash: str = "", death: str = "") -> Complaint | None:
    return read_errors(f"<valgrindoutput>{''.join(errors)}{death}</valgrindoutput>").first(crash)


def named(*errors: str, crash: str = "", death: str = "") -> str:
    complaint = first(*errors, crash=crash, death=death)
    return "" if complaint is None else str(complaint.guilty)


def test_the_writer_is_guilty_and_not_the_copy_function() -> None:
    complaint = first(OVERRUN)
    assert complaint is not None
    assert str(complaint.guilty) == "fill (rows.c:4)"
    assert complaint.deed == "writes to memory that is not its own"


def test_a_function_of_the_users_with_an_allocators_name_is_guilty() -> None:
    freed = error("InvalidFree", stack(("free", "", PRELOAD), ("free_world", "world.c:7", GAME)), aux(FREED))
    assert named(freed) == "free_world (world.c:7)"


def test_noise_is_left_out() -> None:
    assert named(LOADERS) == ""
    assert named(LOADERS, OVERRUN) == "fill (rows.c:4)"
    assert named(error("Leak_DefinitelyLost", stack(("make", "rows.c:2", GAME)))) == ""
    assert named(error("MismatchedFree", stack(("free", "", PRELOAD), ("drop", "rows.c:2", GAME)), aux(LIVE))) == ""


def test_the_systems_libraries_are_not_blamed() -> None:
    crypto = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"
    assert named(error("InvalidWrite", stack(("EVP_MD_do_all_provided", "", crypto)), aux(LIVE))) == ""
    module = "/usr/lib/python3/dist-packages/game/_engine.so"
    assert named(error("InvalidWrite", stack(("fill", "rows.c:4", module)), aux(LIVE))) == "fill (rows.c:4)"


def test_the_first_error_in_time_counts() -> None:
    """A victim comes later than its culprit. Only a read beyond a live block may be harmless."""
    assert named(STALE, OVERRUN) == "draw (draw.c:8)"
    assert named(OVERREAD, OVERRUN) == "fill (rows.c:4)"
    assert named(OVERREAD) == "scan (scan.c:8)"


def test_who_uses_an_address_that_leads_nowhere_is_not_accused() -> None:
    assert named(WILD) == ""
    assert str(read_errors(WILD).site) == "heal (actor.c:8)"
    jump = error("InvalidJump", stack(("", "", ""), ("destroy", "joint.c:3", GAME)), aux(NOWHERE))
    assert named(jump) == ""
    assert str(read_errors(jump).site) == "destroy (joint.c:3)"
    assert named(error("InvalidFree", stack(("free", "", PRELOAD), ("drop", "a.c:1", GAME)), aux(NOWHERE))) == ""
    assert named(WILD, OVERRUN) == "fill (rows.c:4)"


def test_inlined_functions_of_headers_stand_for_their_callers() -> None:
    inlined = stack(("Py_DECREF", "object.h:538", GAME), directory="/opt/python/include/python3.11")
    frames = inlined.removesuffix("</stack>") + stack(("drop", "actor.c:9", GAME)).removeprefix("<stack>")
    assert named(error("InvalidWrite", frames, aux(LIVE))) == "drop (actor.c:9)"
    template = ("std::vector&lt;int&gt;::operator[](unsigned long)", "", GAME)
    taken = ("blur(std::vector&lt;int&gt;&amp;)", "blur.cpp:3", GAME)
    assert named(error("InvalidWrite", stack(template, taken), aux(LIVE))) == "blur(std::vector<int>&) (blur.cpp:3)"


def test_a_destructor_stands_for_who_destroys() -> None:
    for name in ("~Sprite", "game::Sprite::~Sprite()"):
        frames = stack((name, "sprite.h:3", GAME), ("drop_sprite", "sprite.cpp:9", GAME))
        assert named(error("InvalidRead", frames, aux(FREED))) == "drop_sprite (sprite.cpp:9)"


def test_code_without_a_name_does_not_accuse_its_caller() -> None:
    caller = ("step", "step.c:1", GAME)
    assert named(error("InvalidWrite", stack(("", "", "/game/libpure.so"), caller), aux(LIVE))).startswith(
        "a function without a name of libpure.so"
    )
    assert named(error("InvalidWrite", stack(("", "", ""), caller), aux(LIVE))) == ""


def test_who_freed_too_early_is_guilty_of_what_the_interpreter_or_an_array_library_finds() -> None:
    dropped = (aux(FREED), stack(("free", "", PRELOAD), ("drop_actor", "actor.c:9", GAME)))
    for library in (PYTHON, NUMPY):
        complaint = first(error("InvalidRead", stack(("add", "add.c:1", library)), *dropped))
        assert complaint is not None
        assert (str(complaint.guilty), complaint.deed) == ("drop_actor (actor.c:9)", "frees memory that is still used")


def test_who_gave_up_the_last_reference_is_not_accused() -> None:
    died = stack(("free", "", PRELOAD), ("list_dealloc", "", PYTHON), ("_Py_Dealloc", "", PYTHON), ("f", "f.c:1", GAME))
    assert named(error("InvalidRead", stack(("visit_decref", "", PYTHON)), aux(FREED), died)) == ""
    allocated = stack(("malloc", "", PRELOAD), ("make", "rows.c:2", GAME))
    assert named(error("InvalidRead", stack(("visit_decref", "", PYTHON)), aux(LIVE), allocated)) == ""


def test_python_code_that_gives_ctypes_a_wrong_size_is_guilty_itself() -> None:
    call = stack(("memmove", "", PRELOAD), ("ffi_call", "", "/usr/lib/libffi.so.8"), ("_ctypes_callproc", "", CTYPES))
    for about in (LIVE, NOWHERE):
        complaint = first(error("InvalidWrite", call, aux(about)))
        assert complaint is not None
        assert complaint.by_ctypes
    assert not read_errors(OVERRUN).complaints[0].by_ctypes


def test_unset_memory_counts_only_where_the_program_died() -> None:
    unset = error("UninitValue", stack(("steer", "ai.c:7", GAME)))
    assert named(unset) == ""
    assert named(unset, crash="  draw at draw.c:8") == ""
    assert named(unset, crash="  steer at ai.c:7") == "steer (ai.c:7)"
    death = f"<fatal_signal>{stack(('steer', 'ai.c:7', GAME))}</fatal_signal>"
    assert named(unset, death=death) == "steer (ai.c:7)"


def test_a_race_counts_only_between_two_of_one_library_and_not_in_openmp() -> None:
    push, pop = ("push", "list.c:3", GAME), ("pop", "list.c:9", GAME)
    crash = "  push at list.c:3"
    other = aux("This conflicts with a previous write")
    assert named(error("Race", stack(push), other, stack(pop)), crash=crash) == "push (list.c:3)"
    assert named(error("Race", stack(push), other, stack(pop)), crash="  malloc at malloc.c:1") == "push (list.c:3)"
    assert named(error("Race", stack(push), other, stack(pop)), crash="  draw at draw.c:3") == ""
    assert named(error("Race", stack(push), other, stack(EVAL)), crash=crash) == ""
    parallel = stack(push, ("GOMP_parallel", "", GOMP))
    assert named(error("Race", parallel, other, stack(pop)), crash=crash) == ""


def test_the_stack_protector_names_whose_frame_was_overwritten() -> None:
    frames = stack(("abort", "", LIBC), ("__stack_chk_fail", "", LIBC), ("parse", "p.c:9", GAME))
    assert str(read_errors(f"<fatal_signal>{frames}</fatal_signal>").smashed) == "parse (p.c:9)"
    assert read_errors(f"<fatal_signal>{stack(('abort', '', LIBC))}</fatal_signal>").smashed is None


def test_a_file_that_ends_in_the_middle_is_read_as_far_as_it_goes() -> None:
    assert len(read_errors(OVERRUN + OVERRUN[:100]).complaints) == 1
    assert read_errors("").complaints == ()
