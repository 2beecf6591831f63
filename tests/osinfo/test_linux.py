"""Files of /proc: samples of their text, and those of live processes."""

from __future__ import annotations

import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_rlstability.osinfo import linux, portable
from pytest_rlstability.osinfo.memory import resident_memory
from pytest_rlstability.osinfo.proc_records import MappedRegion, Stat, Status
from pytest_rlstability.osinfo.processes import command_of, has_children, is_alive, process_name, short_command

fcntl = pytest.importorskip("fcntl", reason="reads /proc")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
NOBODY = 2**22 + 1
"""Above the largest number a process can have."""


def test_stat_of_a_program_whose_name_has_spaces_and_parentheses() -> None:
    numbers = "4711 99 98 0 -1 4194560 10 20 0 0 7 5 3 1 20 0 1 0 123456 1000 50"
    stat = Stat.parse(f"42 (a) R (b c) S {numbers}".encode())
    assert (stat.name, stat.state, stat.parent, stat.group, stat.session) == ("a) R (b c", "S", 4711, 99, 98)
    assert (stat.ticks, stat.ticks_with_children, stat.start) == (12, 16, 123456)


def test_status() -> None:
    status = Status(
        b"Name:\tx\nRssAnon:\t     300 kB\nRssShmem:\t       0 kB\nSigBlk:\t0000000000000400\n"
        b"voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t6\nx86_Thread_features:\t\n"
    )
    assert (status.size(b"RssAnon"), status.size(b"RssShmem"), status.size(b"VmData")) == (300 * 1024, 0, 0)
    assert status.signals(b"SigBlk") == 1 << 10
    assert status.switches == 156
    assert Status(b"Name:\tkernel thread\n").switches == 0


def test_a_mapping() -> None:
    mapping = MappedRegion(b"7f0000400000-7f0000402000 rw-s 00001000 00:19 77                   /dev/shm/a b (deleted)")
    assert (mapping.start, mapping.end) == (0x7F0000400000, 0x7F0000402000)
    assert (mapping.size, mapping.is_shared) == (8192, True)
    assert (mapping.device, mapping.inode, mapping.name) == (b"00:19", b"77", "/dev/shm/a b (deleted)")
    anonymous = MappedRegion(b"7f0000400000-7f0000402000 rw-p 00000000 00:00 0 ")
    assert (anonymous.is_shared, anonymous.path) == (False, b"")


def test_processes_that_are_not_there_have_empty_answers() -> None:
    assert (linux.stat(NOBODY), linux.status(NOBODY), linux.stat(NOBODY, 1)) == (None, None, None)
    assert (linux.children_of(NOBODY), linux.threads_of(NOBODY), linux.links_of(NOBODY)) == ([], [], [])
    assert (linux.command_of(NOBODY), linux.schedule(NOBODY), short_command(NOBODY)) == ("", b"", "?")
    assert (linux.system_call(NOBODY, 1), linux.has_timers(NOBODY)) == (None, None)
    assert (linux.touched_and_mapped(NOBODY), list(linux.mappings(NOBODY))) == (None, [])
    assert (linux.file_locks(NOBODY, 0), linux.watched_by(NOBODY, 0)) == ([], [])
    assert linux.descriptor_target(NOBODY, 0) == linux.GONE
    assert not linux.has_variable(NOBODY, "A=1")
    assert not is_alive(NOBODY)
    assert process_name(NOBODY, None) == f"pid {NOBODY} (ended)"


def test_this_process() -> None:
    own = linux.stat(os.getpid())
    assert own is not None
    assert (own.parent, own.session, own.state) == (os.getppid(), os.getsid(0), "R")
    assert os.getpid() in linux.pids()
    assert threading.get_native_id() in linux.threads_of(os.getpid())
    assert len(linux.own_threads()) == len(linux.threads_of(os.getpid()))
    assert sys.executable.rpartition("/")[2] in command_of(os.getpid())
    space = linux.AddressSpace()
    before = space.pages()
    with mmap.mmap(-1, 64 * 2**20) as memory:
        assert memory is not None
        assert int(space.pages()) > int(before)
    space.close()


def test_the_environment_a_process_was_started_with() -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "RL_MARK": "one"}) as process:
        try:
            while not linux.command_of(process.pid).startswith("sleep"):
                time.sleep(0.01)  # Popen returns while the kernel still sets the new program up
            assert linux.has_variable(process.pid, "RL_MARK=one")
            assert not linux.has_variable(process.pid, "RL_MARK=on")
        finally:
            process.kill()


def test_a_zombie_has_a_name_and_is_not_alive() -> None:
    before = {*linux.children_of(os.getpid())}
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_children()
        assert {*linux.children_of(os.getpid())} - before == {process.pid}
        assert (command_of(process.pid), short_command(process.pid)) == ("", "true")
        assert not is_alive(process.pid)


def test_a_process_without_children() -> None:
    program = "from pytest_rlstability.osinfo.processes import has_children; print(has_children())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_locks_epoll_and_sockets(tmp_path: Path) -> None:
    with open(tmp_path / "locked", "w") as file, open(tmp_path / "locked") as other:
        assert linux.file_locks(os.getpid(), other.fileno()) == []
        fcntl.flock(file, fcntl.LOCK_EX)
        assert linux.file_locks(os.getpid(), other.fileno()) == [(os.getpid(), True, 0)]
    with socket.socket(socket.AF_UNIX) as listener, select.epoll() as epoll:
        listener.bind(str(tmp_path / "listens here"))
        epoll.register(listener, select.EPOLLIN)
        assert linux.watched_by(os.getpid(), epoll.fileno()) == [listener.fileno()]
        [(inode, path)] = linux.unix_sockets("listens here")
        assert (f"socket:[{inode}]", path) == (
            linux.descriptor_target(os.getpid(), listener.fileno()),
            str(tmp_path / "listens here"),
        )


def test_machine_files() -> None:
    memory = linux.memory_fields()
    assert 0 < memory["MemAvailable"] <= memory["MemTotal"]
    assert linux.kernel_kills() >= 0
    assert linux.machine_text("no such file") == ""


def test_psutil_tells_the_same_where_both_can() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            children = portable.children_of(os.getpid())
            assert process.pid in children
            assert sorted(children) == sorted(linux.children_of(os.getpid()))
            assert portable.is_alive(process.pid)
            assert portable.resident_memory(process.pid) >= resident_memory(process.pid)
            seen, stat = portable.activity(process.pid), linux.stat(process.pid)
            assert seen is not None
            assert stat is not None
            assert seen[0] == stat.name == "sleep"
        finally:
            process.kill()
    assert portable.memory_fields()["MemTotal"] == linux.memory_fields()["MemTotal"]
    assert (portable.children_of(NOBODY), portable.is_alive(NOBODY)) == ([], False)
    assert (portable.resident_memory(NOBODY), portable.activity(NOBODY)) == (0, None)
