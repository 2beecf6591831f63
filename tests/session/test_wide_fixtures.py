"""Marked tests that need wide fixtures share these, though not a process, where that survives a fork."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pids import is_gone, pid_in

SHARED = """
    import os
    import pytest

    def note(word):
        with open("notes", "a") as file:
            file.write(word + chr(10))

    @pytest.fixture(scope="session")
    def world():
        note("world up")
        yield {"made by": os.getpid()}
        note("world down")

    @pytest.fixture(scope="module", params=["sun", "rain"])
    def weather(request, world):
        note(f"{request.param} up")
        yield request.param
        note(f"{request.param} down")

    @pytest.mark.rl_isolated
    class TestMarked:
        @pytest.mark.parametrize("number", [1, 2])
        def test_walks(self, world, number, tmp_path):
            assert world["made by"] != os.getpid()
            assert "visited" not in world
            world["visited"] = number

        def test_weather(self, weather, world):
            assert weather in ("sun", "rain")
            note(f"in {weather}")

    @pytest.mark.rl_isolated
    def test_crashes(world):
        os.abort()
"""


def test_wide_fixtures_are_set_up_once_and_each_test_has_its_process(run_pytest):
    outcome = run_pytest(SHARED, "--rl-group=auto")
    failed = {name for name, result in outcome.tests.items() if result != "passed"}
    assert failed == {"test_crashes"}, outcome.text
    notes = (run_pytest.path / "notes").read_text().split("\n")[:-1]
    assert notes == ["world up", "sun up", "in sun", "sun down", "rain up", "in rain", "rain down", "world down"]
    assert "5 tests in 5 processes" in outcome.text


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", "they start threads"),
        ("kept.extend(socket.socketpair())", "they hold a connection"),
        ("kept.append(selectors.EpollSelector())", "they have an event loop"),
        (
            "kept.append(sqlite3.connect('a.db')); kept[0].execute('create table if not exists t(a)')",
            "they hold an SQLite",
        ),
        ("raise ValueError('no world')", "their set-up raises ValueError"),
        ("pytest.skip('not today')", "their set-up raises Skipped"),
        ("os.abort()", "the process that starts tests was killed"),
    ],
)
def test_what_does_not_survive_a_fork_is_set_up_by_each_test(run_pytest, make, reason):
    outcome = run_pytest(
        f"""
        import os, pytest, selectors, socket, sqlite3, threading
        kept = []

        @pytest.fixture(scope="session")
        def world():
            {make}
            yield os.getpid()

        @pytest.mark.rl_isolated
        @pytest.mark.parametrize("number", [1, 2])
        def test_marked(world, number):
            assert world == os.getpid()
        """,
        "-v",
    )
    expected = {"ValueError": "error", "not today": "skipped", "abort": "failed"}
    wanted = next((result for word, result in expected.items() if word in make), "passed")
    assert set(outcome.tests.values()) == {wanted}, outcome.text
    assert f"each marked test set up world itself: {reason}" in outcome.text


def test_what_was_set_up_in_vain_is_torn_down_before_the_test_does_it_itself(run_pytest):
    outcome = run_pytest(
        """
        import os, pytest, threading

        @pytest.fixture(scope="session")
        def port():
            os.mkdir("taken")
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            yield
            os.rmdir("taken")

        @pytest.mark.rl_isolated
        def test_marked(port): pass
        """
    )
    assert outcome.tests == {"test_marked": "passed"}, outcome.text


def test_a_tear_down_that_fails_is_an_error_and_one_that_dies_is_said(run_pytest):
    source = """
        import os, pytest

        @pytest.fixture(scope="session")
        def world():
            yield
            {end}

        @pytest.mark.rl_isolated
        def test_marked(world): pass
        """
    raised = run_pytest(source.format(end="raise ValueError('cannot close')"))
    assert raised.code == 1
    assert "ERROR at teardown of test_marked" in raised.text
    assert "ValueError: cannot close" in raised.text
    died = run_pytest(source.format(end="os.abort()"))
    assert died.code == 1
    assert "did not survive their tear-down" in died.text


def test_a_tear_down_that_never_ends_is_a_stall(run_pytest):
    outcome = run_pytest(
        """
        import pytest, threading

        @pytest.fixture(scope="session")
        def world():
            yield
            threading.Event().wait()

        @pytest.mark.rl_isolated
        def test_marked(world): pass
        """,
        "--rl-stall-after=1s",
    )
    assert outcome.code == 1
    assert "STALL: the tear-down of wide fixtures did not end" in outcome.text
    assert "in world" in outcome.text or "world at" in outcome.text or "not installed" in outcome.text


def test_an_earlier_error_is_not_lost_to_a_tear_down_that_never_ends(run_pytest):
    outcome = run_pytest(
        """
        import pytest, threading

        @pytest.fixture(scope="session")
        def world():
            yield
            threading.Event().wait()

        @pytest.fixture(scope="class")
        def level(world):
            yield
            raise ValueError("cannot close")

        class TestLevel:
            @pytest.mark.rl_isolated
            def test_first(self, level): pass

        @pytest.mark.rl_isolated
        def test_second(world): pass
        """,
        "--rl-stall-after=1s",
        "--rl-native=off",
    )
    assert "ValueError: cannot close" in outcome.text
    assert "STALL: the tear-down of wide fixtures did not end\n(off)" in outcome.text


def test_a_set_up_that_never_ends_is_a_stall_of_each_test(run_pytest):
    outcome = run_pytest(
        """
        import pytest, threading

        @pytest.fixture(scope="session")
        def world(): threading.Event().wait()

        @pytest.mark.rl_isolated
        def test_marked(world): pass
        """,
        "--rl-stall-after=1s",
    )
    assert "in set-up of fixture 'world'" in outcome.details["test_marked"], outcome.text


def test_a_set_up_that_takes_longer_and_computes_is_shared(run_pytest):
    outcome = run_pytest(
        """
        import pytest, time

        @pytest.fixture(scope="session")
        def world():
            open("set up", "a").write("x")
            end = time.process_time() + 2
            while time.process_time() < end: pass

        @pytest.mark.rl_isolated
        @pytest.mark.parametrize("number", range(2))
        def test_marked(world, number): assert open("set up").read() == "x"
        """,
        "--rl-stall-after=1500ms",
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


def test_a_fixture_that_hangs_ends_when_pytest_is_killed(run_pytest):
    run_pytest.write(
        "test_it.py",
        """
        import os, pytest, threading

        @pytest.fixture(scope="session")
        def world():
            with open("pid", "w") as file:
                file.write(f"{os.getpid()}\\n")
            threading.Event().wait()

        @pytest.mark.rl_isolated
        def test_marked(world): pass
        """,
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rl-stability"]
    with subprocess.Popen(command, cwd=run_pytest.path, stdout=subprocess.DEVNULL) as run:
        pid = pid_in(run_pytest.path / "pid")
        run.kill()
    assert is_gone(pid)


def test_what_a_fixture_started_is_not_left_by_a_test(run_pytest):
    outcome = run_pytest(
        """
        import os, pytest, subprocess

        @pytest.fixture(scope="session")
        def server():
            process = subprocess.Popen(["sleep", "100"])
            yield process.pid
            process.terminate()
            process.wait()

        @pytest.mark.rl_isolated
        @pytest.mark.parametrize("number", [1, 2])
        def test_server(server, number):
            os.kill(server, 0)
            assert os.getppid() == int(open(f"/proc/{server}/stat").read().split()[3])
        """
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert "left behind" not in outcome.text
    assert "left processes" not in outcome.text
