"""Signatures group: one bug has one name, two bugs have two."""

from __future__ import annotations

from pytest_rlstability.model.stack_dump import Frame
from pytest_rlstability.verdicts.signatures import native_functions, normalised, signature

TICK = Frame("/game/emulator.py", 12, "tick")
FILM, PLAY = Frame("/game/film.py", 3, "film"), Frame("/game/play.py", 9, "play")


def name(*frames: Frame, native: str = "", cause: str = "SIGSEGV") -> str:
    return signature(cause, "call", frames, native)


def stack(*functions: str, address: str = "7f01", line: int = 4) -> str:
    frames = "\n".join(f"  {function} at engine.c:{line}" for function in functions)
    python = "  tick at /game/emulator.py:12 [Python]\n  film at /game/film.py:3 [Python]"
    return f"thread {address} (python)\n{frames}\n{python}"


def test_two_bugs_under_one_python_function_are_two() -> None:
    assert name(TICK, FILM, native=stack("draw_line")) != name(TICK, FILM, native=stack("mix_sound"))


def test_one_bug_reached_from_two_callers_is_one() -> None:
    assert name(TICK, FILM, native=stack("draw_line")) == name(TICK, PLAY, native=stack("draw_line"))
    assert name(TICK, FILM) == name(TICK, PLAY)


def test_builds_addresses_and_lines_do_not_matter() -> None:
    plain = name(TICK, native=stack("draw_line", "frame"))
    assert plain == name(TICK, native=stack("draw_line.part.0", "frame", address="55aa", line=99))
    assert plain == name(TICK, native=stack("__GI_raise", "abort", "draw_line.constprop.1.cold", "frame(int)"))
    assert name(TICK, native=stack("__strlen_evex")) == name(TICK, native=stack("__strlen_avx2"))


def test_what_every_program_dies_in_is_left_out() -> None:
    died = stack("__pthread_kill_implementation", "gsignal", "abort", "__libc_message", "malloc_printerr", "_int_free")
    assert native_functions(died) == []
    assert name(TICK, native=died) == name(TICK)
    copied = stack("__memmove_avx512_unaligned_erms", "copy_tile")
    assert native_functions(copied) == ["copy_tile"]
    assert native_functions(stack("strategy", "membrane")) == ["strategy", "membrane"]


def test_after_an_overwritten_stack_the_functions_below_do_not_count() -> None:
    smashed = stack("abort", "__stack_chk_fail", "parse", "??")
    assert name(TICK, native=smashed) == name(TICK, native=stack("abort", "__stack_chk_fail", "load_sprite"))
    assert name(TICK, native=smashed) != name(TICK)


def test_without_a_native_stack_the_reason_is_not_a_frame() -> None:
    assert name(TICK, native="(none: pystack is not installed)") == name(TICK)


def test_a_library_frame_above_the_users_stays() -> None:
    inside = Frame("/usr/lib/python3.11/ctypes/__init__.py", 519, "string_at")
    assert name(inside, TICK) != name(TICK)


def test_operators_and_templates_are_read() -> None:
    assert normalised("std::vector<int, std::allocator<int> >::push_back(int&&)") == "std::vector::push_back"
