"""What a checker's errors say about who is guilty."""

from __future__ import annotations

from pytest_rlstability.diagnose.memcheck import first_guilty, read_complaints

PYTHON, LOADER, LIBC = "/usr/lib/libpython3.11.so.1.0", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"
PRELOAD, GAME = "/usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so", "/game/_engine.cpython-311.so"

Frame = tuple[str, str, str]


def stack(*frames: Frame) -> str:
    parts = []
    for function, place, library in frames:
        file, _, line = place.partition(":")
        where = f"<file>{file}</file><line>{line}</line>" if place else ""
        parts.append(f"<frame><ip>0x1</ip><obj>{library}</obj><fn>{function}</fn>{where}</frame>")
    return f"<stack>{''.join(parts)}</stack>"


def error(kind: str, *parts: str) -> str:
    return f"<error><unique>0x0</unique><kind>{kind}</kind><what>Invalid</what>{''.join(parts)}</error>"


def aux(text: str) -> str:
    return f"<auxwhat>{text}</auxwhat>"


OVERRUN = error(
    "InvalidWrite",
    stack(("memcpy", "", PRELOAD), ("fill", "rows.c:4", GAME), ("_PyEval_EvalFrameDefault", "ceval.c:1", PYTHON)),
    aux("Address 0x1 is 0 bytes after a block of size 24 alloc'd"),
    stack(("malloc", "", PRELOAD), ("make", "rows.c:2", GAME)),
)
LOADERS = error("InvalidRead", stack(("is_dst", "", LOADER), ("_dl_map_object", "dl-load.c:1", LOADER)))
FREED = error(
    "InvalidRead",
    stack(("subtype_dealloc", "typeobject.c:1", PYTHON)),
    aux("Address 0x1 is 0 bytes inside a block of size 48 alloc'd"),
    stack(("malloc", "", PRELOAD), ("new_actor", "actor.c:3", GAME)),
    aux("Address 0x1 is 0 bytes inside a block of size 48 free'd"),
    stack(("free", "", PRELOAD), ("drop_actor", "actor.c:9", GAME)),
)
VICTIM = error("InvalidRead", stack(("draw", "draw.c:8", GAME)))


def test_the_writer_is_guilty_and_not_the_copy_function() -> None:
    complaint = first_guilty(read_complaints(f"<valgrindoutput>{OVERRUN}</valgrindoutput>"))
    assert complaint is not None
    assert str(complaint.guilty) == "fill (rows.c:4)"
    assert complaint.deed == "writes to memory that is not its own"


def test_a_function_of_the_users_with_an_allocators_name_is_guilty() -> None:
    freed = error("InvalidFree", stack(("free", "", PRELOAD), ("free_world", "world.c:7", GAME)), aux("alloc'd"))
    complaint = first_guilty(read_complaints(freed))
    assert complaint is not None
    assert str(complaint.guilty) == "free_world (world.c:7)"


def test_the_loaders_noise_is_left_out() -> None:
    assert first_guilty(read_complaints(LOADERS)) is None
    complaint = first_guilty(read_complaints(LOADERS + OVERRUN))
    assert complaint is not None
    assert complaint.kind == "InvalidWrite"


def test_the_systems_libraries_are_not_blamed() -> None:
    noise = error("UninitCondition", stack(("EVP_MD_do_all_provided", "", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3")))
    assert first_guilty(read_complaints(noise)) is None
    module = "/usr/lib/python3/dist-packages/game/_engine.so"
    own = error("InvalidWrite", stack(("fill", "rows.c:4", module)))
    assert first_guilty(read_complaints(own)) is not None


def test_who_freed_too_early_is_guilty_of_what_the_interpreter_finds() -> None:
    complaint = first_guilty(read_complaints(FREED))
    assert complaint is not None
    assert str(complaint.guilty) == "drop_actor (actor.c:9)"


def test_a_writer_counts_more_than_an_earlier_reader() -> None:
    complaint = first_guilty(read_complaints(VICTIM + OVERRUN))
    assert complaint is not None
    assert str(complaint.guilty) == "fill (rows.c:4)"


def test_a_file_that_ends_in_the_middle_is_read_as_far_as_it_goes() -> None:
    assert len(read_complaints(OVERRUN + OVERRUN[:100])) == 1
    assert read_complaints("") == []
