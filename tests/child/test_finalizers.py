"""What ends with a test's process: a crash there is the test's, and resources of the whole run survive it."""

from __future__ import annotations

import subprocess

import pytest

LIBRARIES = {
    "plugin.cc": "struct Plugin { ~Plugin() { *(volatile int *)8 = 1; } };\nstatic Plugin plugin;",
    "unloaded.c": "__attribute__((destructor)) static void unload(void) { *(volatile int *)8 = 1; }",
    "buffer.cc": """
        #include <cstdlib>
        struct Buffer { void *bytes = malloc(1 << 22); ~Buffer() { free(bytes); } };
        Buffer buffer;
        extern "C" void release() { free(buffer.bytes); }
    """,
    "innocent.cc": """
        #include <string>
        #include <vector>
        struct Log { std::vector<std::string> lines; ~Log() { lines.clear(); } };
        Log log_;
        extern "C" void note() { log_.lines.push_back("line"); }
    """,
}
TESTS = """
    import ctypes
    import pytest

    if {marked}:
        pytestmark = pytest.mark.rl_isolated
    BUFFER, INNOCENT = ctypes.CDLL("./buffer.so"), ctypes.CDLL("./innocent.so")
    KEPT = HARMLESS = None

    class Native:
        def __init__(self, address): self.address = address
        def __del__(self): ctypes.string_at(self.address)

    def at_exit(function):
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(ctypes.cast(getattr(libc, function), ctypes.c_void_p), None, None)

    def test_static_object(): ctypes.CDLL("./plugin.so")
    def test_c_destructor(): ctypes.CDLL("./unloaded.so")
    def test_freed_twice(): BUFFER.release()
    def test_exit_handler(): at_exit("abort")
    def test_object_in_module():
        global KEPT
        KEPT = Native(8)
    def test_innocent():
        global HARMLESS
        HARMLESS = Native(id("text"))
        INNOCENT.note()
        at_exit("getpid")
"""
PLACES = {
    "test_static_object": "in Plugin::~Plugin",
    "test_c_destructor": "in unload at ",
    "test_freed_twice": "in Buffer::~Buffer",
    "test_exit_handler": "SIGABRT at exit",
    "test_object_in_module": "in __del__, inside string_at",
}


@pytest.fixture
def libraries(run_pytest):
    for name, source in LIBRARIES.items():
        run_pytest.write(name, source)
        compiler = "g++" if name.endswith(".cc") else "gcc"
        library = run_pytest.path / name
        command = [compiler, "-shared", "-fPIC", "-g", "-o", str(library.with_suffix(".so")), str(library)]
        subprocess.run(command, check=True)


def test_a_marked_test_whose_process_dies_at_its_end_is_a_crash(run_pytest, libraries):
    outcome = run_pytest(TESTS.format(marked=True))
    assert outcome.tests == {**dict.fromkeys(PLACES, "failed"), "test_innocent": "passed"}, outcome.text
    for place in PLACES.values():
        assert place in outcome.text
    assert outcome.text.count("CRASH: SIGSEGV at exit") >= 4


@pytest.mark.parametrize("test", ["test_freed_twice", "test_exit_handler", "test_object_in_module"])
def test_a_shared_process_that_dies_at_its_end_is_a_crash(run_pytest, libraries, test):
    outcome = run_pytest(TESTS.format(marked=False), "--rl-group=auto", "-k", f"innocent or {test}")
    assert f"ERROR test_it.py::{test} - CRASH: SIG" in outcome.text
    assert f"{test} does the damage" in outcome.text
    assert PLACES[test] in outcome.text


def test_resources_of_the_whole_run_survive_each_test(run_pytest):
    outcome = run_pytest(
        """
        import os, tempfile
        import pytest
        DIRECTORY, FILE = tempfile.TemporaryDirectory(), tempfile.NamedTemporaryFile()

        @pytest.mark.parametrize("number", range(3))
        def test_there(number): assert os.path.isdir(DIRECTORY.name) and os.path.exists(FILE.name)
        """
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


def test_what_a_wide_fixture_keeps_in_a_module_survives_each_test(run_pytest):
    outcome = run_pytest(
        """
        import os, tempfile
        import pytest
        pytestmark = pytest.mark.rl_isolated

        @pytest.fixture(scope="module")
        def directory():
            global DIRECTORY
            DIRECTORY = tempfile.TemporaryDirectory()
            return DIRECTORY.name

        @pytest.mark.parametrize("number", range(3))
        def test_there(directory, number): assert os.path.isdir(directory)
        """
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


def test_a_destructor_that_never_ends_is_a_stall(run_pytest):
    run_pytest.write(
        "hangs.c", "#include <unistd.h>\n__attribute__((destructor)) static void hang(void) { for (;;) pause(); }"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "hangs.so", "hangs.c"], cwd=run_pytest.path, check=True)
    outcome = run_pytest('import ctypes\ndef test_it(): ctypes.CDLL("./hangs.so")\n', "--rl-stall-after=2s")
    assert outcome.tests == {"test_it": "failed"}, outcome.text
    assert "no progress for 2" in outcome.text
    assert ", at exit" in outcome.text


def test_no_exit_check_runs_no_destructors(run_pytest, libraries):
    outcome = run_pytest(
        """
        import ctypes, pytest

        @pytest.mark.rl_isolated(exit_check=False)
        def test_it(): ctypes.CDLL("./plugin.so")
        """
    )
    assert outcome.tests == {"test_it": "passed"}, outcome.text
