"""Ending processes that do not want to end, or that have hidden."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pytest_rlstability.osinfo.process_control import end_children, end_tree, exit_descriptor, kill_tree, send_signal
from pytest_rlstability.osinfo.processes import children_of, descendants_of, is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

Start = Callable[..., tuple[subprocess.Popen[str], list[int]]]
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
ORPHANED = "os.wait(); tell(); time.sleep(600)"
FORKS = """
    import os, sys, time, signal
    def tell():
        os.write(1, b"%d\\n" % os.getpid())
    def fork(before=lambda: None, then=lambda: time.sleep(600)):
        if os.fork() == 0:
            before()
            tell()
            then()
            os._exit(0)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that prints the numbers of *count* processes, and gives those of the others."""
    started: list[subprocess.Popen[str]] = []
    numbers: list[int] = []

    def start(program: str, count: int, **others: object) -> tuple[subprocess.Popen[str], list[int]]:
        text = textwrap.dedent(FORKS) + textwrap.dedent(program)
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, **others)
        started.append(process)
        assert process.stdout is not None
        printed = [int(process.stdout.readline()) for _ in range(count)]
        found = [number for number in printed if number != process.pid]
        numbers.extend(found)
        return process, found

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def gone(pids: list[int]) -> bool:
    """Whether all have ended, which takes a moment after the signal."""
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(is_alive(pid) for pid in pids)


def test_a_tree_that_ignores_sigterm_is_killed(start: Start) -> None:
    process, [child] = start(f"{STUBBORN}\nfork()\ntime.sleep(600)", 1)
    began = time.monotonic()
    end_tree(process.pid, grace=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert not is_alive(child)
    assert process.wait() == -signal.SIGKILL, "reaped here, by the process that started it"


def test_one_that_obeys_is_not_killed(start: Start) -> None:
    process, _ = start(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        tell()
        time.sleep(600)
        """,
        1,
    )
    end_tree(process.pid, grace=10)
    assert process.wait() == 7


def test_a_descendant_that_left_the_session(start: Start) -> None:
    process, [child] = start("fork(before=os.setsid)\ntime.sleep(600)", 1)
    assert os.getsid(child) == child
    end_tree(process.pid)
    assert not is_alive(child)


def test_a_double_fork_in_the_session(start: Start) -> None:
    process, [_, orphan] = start(f"fork(then=fork)\n{ORPHANED}", 3, start_new_session=True)
    assert orphan not in descendants_of(process.pid)
    end_tree(process.pid)
    assert not is_alive(orphan)


def test_a_daemon_is_known_by_its_environment(start: Start) -> None:
    process, [_, daemon] = start(
        f"fork(then=lambda: fork(before=os.setsid))\n{ORPHANED}",
        3,
        start_new_session=True,
        env={**os.environ, "RL_TREE": "7"},
    )
    end_tree(process.pid)
    assert is_alive(daemon), "nothing else connects it with the tree"
    end_tree(process.pid, variable="RL_TREE=7")
    assert not is_alive(daemon)


def test_what_is_left_of_a_tree_whose_root_has_ended(start: Start) -> None:
    process, [child] = start("fork()", 1, start_new_session=True)
    process.wait()
    end_tree(process.pid)
    assert not is_alive(child)


def test_orphans_are_followed_after_their_parent_was_ended(start: Start) -> None:
    """The child leaves the session and obeys SIGTERM; the grandchild does not, and is an orphan by then."""
    process, [_, grandchild] = start(
        f"""
        def stubborn():
            {STUBBORN}
        fork(before=os.setsid, then=lambda: (fork(before=stubborn), time.sleep(600)))
        time.sleep(600)
        """,
        2,
    )
    end_tree(process.pid, grace=0.3)
    assert not is_alive(grandchild)


def test_a_stopped_process_is_ended(start: Start) -> None:
    process, _ = start("tell()\ntime.sleep(600)", 1)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    end_tree(process.pid, grace=0.1)
    assert process.wait() == -signal.SIGKILL


def test_others_are_left_alone(start: Start) -> None:
    process, _ = start("tell()\ntime.sleep(600)", 1)
    bystander, _ = start("tell()\ntime.sleep(600)", 1)
    end_tree(process.pid)
    kill_tree(process.pid)
    assert bystander.poll() is None


def test_killing_does_not_wait(start: Start) -> None:
    process, [child] = start(f"{STUBBORN}\nfork(before=os.setsid)\ntime.sleep(600)", 1, start_new_session=True)
    kill_tree(process.pid)
    assert gone([process.pid, child])
    kill_tree(process.pid)
    send_signal(process.pid, signal.SIGTERM)


def test_children_are_reaped_and_some_spared(start: Start) -> None:
    program = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\ntell()\ntime.sleep(0.4)"
    spared, _ = start(program, 1)
    others = [start(program, 1)[0] for _ in range(2)]
    pids = [process.pid for process in others]
    end_children(
        lambda: [pid for pid in children_of(os.getpid()) if pid in (spared.pid, *pids)],
        grace=10,
        spare=lambda pid: pid == spared.pid,
    )
    assert not {spared.pid, *pids} & {*children_of(os.getpid())}
    with pytest.raises(ChildProcessError):
        os.waitpid(spared.pid, 0)


def test_an_end_can_be_waited_for(start: Start) -> None:
    process, _ = start("tell()\ntime.sleep(600)", 1)
    descriptor = exit_descriptor(process.pid)
    assert descriptor is not None
    process.kill()
    os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    os.close(descriptor)
    process.wait()
    assert exit_descriptor(process.pid) is None
