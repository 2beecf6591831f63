"""One run over two hosts, and what is left of it when one of them vanishes. Needs root, ``ip`` and ``ssh``.

    python benchmarks/two_hosts.py                    # all three runs
    python benchmarks/two_hosts.py --only power       # calm, link or power

A host is a network, process and mount namespace of this machine with an sshd. pytest runs in a third network namespace,
which reaches nothing but these two. An sshd that is not installed is unpacked from Debian's packages.

- ``calm``: nothing happens to the hosts.
- ``link``: the link to one of them goes down while a soak runs there. Its processes live on.
- ``power``: the link goes down and all processes of the host are killed.

Each run says what was seen, and fails where a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PORT = 9471
LONGEST = 400.0
"""Seconds that a run may take. One that takes longer has not ended by itself."""
SOAK = "25s"
HOSTS = ("host-a", "host-b")
LOST_HOST = HOSTS[1]
COPIES, SOAKS = 2, 4
"""Files of each kind, so that both hosts get some. The longest files are those with soaks: xdist starts with them."""

SUITE = {
    "crash": """
        import ctypes, os
        def test_before(): pass
        def test_segfault(): ctypes.string_at(0)
        def test_abort(): os.abort()
        def test_after(): pass
        """,
    "stall": """
        import threading, pytest
        @pytest.mark.rl_no_stall(after="3s")
        def test_deadlock():
            one, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
            def take(first, second):
                with first:
                    both.wait()
                    with second: pass
            threads = [threading.Thread(target=take, args=pair) for pair in ((one, other), (other, one))]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        """,
    "leak": """
        import pytest
        KEPT = []
        @pytest.mark.rl_no_leak
        def test_keeps(): KEPT.append(bytearray(5000))
        """,
    "blame": """
        import os, signal
        def test_innocent(): os.environ["SEEN"] = "1"
        def test_culprit(): signal.signal(signal.SIGUSR2, lambda *_: os.abort())
        def test_between(): pass
        def test_victim():
            if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
                signal.raise_signal(signal.SIGUSR2)
        """,
    "soak": """
        import time, pytest
        @pytest.mark.rl_soak("10min")
        def test_laps(rl_laps):
            for lap in rl_laps: time.sleep(0.02)
        @pytest.mark.parametrize("number", range(20))
        def test_one(number): pass
        """,
    "healthy": """
        import time, pytest
        @pytest.mark.parametrize("number", range(15))
        def test_one(number): time.sleep(0.05)
        """,
}
INTERNAL = re.compile("internal ?error", re.IGNORECASE)
WORDS = {
    "test_segfault": "CRASH", "test_abort": "CRASH", "test_deadlock": "STALL", "test_keeps": "LEAK",
    "test_culprit": "CRASH", "test_victim": "CRASH",
}  # fmt: skip
"""The verdict on each test that must fail. All others must pass."""


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def find_sshd(directory: Path) -> tuple[str, str]:
    """The path of an sshd, and that of the libraries it needs beside the installed ones."""
    if found := shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"):
        return found, ""
    packages, root = directory / "packages", directory / "sshd"
    packages.mkdir()
    for package in ("openssh-server", "libwrap0"):
        done = subprocess.run(
            ["apt-get", "download", package], cwd=packages, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"there is no sshd here, and apt-get cannot download {package}: {done.stderr}")
    for file in packages.iterdir():
        run("dpkg", "-x", str(file), str(root))
    library = next(root.glob("usr/lib/*/libwrap.so.0"))
    return str(root / "usr/sbin/sshd"), str(library.parent)


def new_init(script: str, namespace: str, **options: Any) -> subprocess.Popen[bytes]:
    """Run *script* as the first process of a process namespace: when it is killed, everything in there is."""
    command = ["ip", "netns", "exec", namespace, "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
    command += ["--mount-proc", "bash", "-c", script]
    return subprocess.Popen(command, start_new_session=True, **options)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


@dataclass
class Host:
    """One of the two hosts: its namespace, its address, and the process whose end is the end of all its processes."""

    name: str
    namespace: str
    address: str
    link: str
    """The controller's end of the link."""
    init: subprocess.Popen[bytes]


@dataclass
class Network:
    controller: str
    hosts: list[Host] = field(default_factory=list)

    def link_down(self, host: Host) -> None:
        run("ip", "-n", self.controller, "link", "set", host.link, "down")


@contextmanager
def network(directory: Path) -> Iterator[Network]:
    """Two hosts and a namespace for the controller. All of it is gone afterwards, however this process ends."""
    with ExitStack() as undo:
        prefix = f"rl{os.getpid()}"
        net = Network(f"{prefix}c")
        _add_namespace(net.controller, undo)
        sshd, libraries = find_sshd(directory)
        key = directory / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        config = [f"IdentityFile {key}", "User root", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
        config += ["LogLevel ERROR"]
        for number, name in enumerate(HOSTS, start=1):
            namespace, link = f"{prefix}{name[-1]}", f"{prefix}{name[-1]}"
            _add_namespace(namespace, undo)
            run(
                "ip",
                "-n",
                net.controller,
                "link",
                "add",
                link,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace,
            )
            run("ip", "-n", net.controller, "addr", "add", f"10.83.{number}.1/30", "dev", link)
            run("ip", "-n", namespace, "addr", "add", f"10.83.{number}.2/30", "dev", "eth0")
            run("ip", "-n", net.controller, "link", "set", link, "up")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
            init = _start_sshd(directory / name, name, namespace, sshd, libraries, key)
            undo.callback(end, init)
            address = f"10.83.{number}.2"
            net.hosts.append(Host(name, namespace, address, link, init))
            config += [f"Host {name}", f"  HostName {address}"]
        (directory / "ssh_config").write_text("\n".join(config) + "\n")
        for host in net.hosts:
            _wait_for_ssh(net, host, directory)
        yield net


def _add_namespace(name: str, undo: ExitStack) -> None:
    undo.callback(run, "ip", "netns", "del", name, check=False)
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")


def _start_sshd(home: Path, name: str, namespace: str, sshd: str, libraries: str, key: Path) -> subprocess.Popen[bytes]:
    (home / "tmp").mkdir(parents=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / "host_key"))
    users = Path("/etc/passwd").read_text()
    if "\nsshd:" not in users:
        users += "sshd:x:64990:65534::/run/sshd:/usr/sbin/nologin\n"
    (home / "passwd").write_text(users)
    (home / "sshd_config").write_text(
        textwrap.dedent(
            f"""
            HostKey {home}/host_key
            AuthorizedKeysFile {key}.pub
            PermitRootLogin yes
            StrictModes no
            UsePAM no
            PidFile none
            SetEnv TMPDIR={home}/tmp PYTHONDONTWRITEBYTECODE=1
            """
        )
    )
    # The host has a name, shared memory and a list of users of its own.
    script = f"""
        set -e
        hostname {name}
        mount -t tmpfs none /dev/shm
        mount -t tmpfs none /run
        mkdir /run/sshd
        mount --bind {home}/passwd /etc/passwd
        LD_LIBRARY_PATH={libraries} {sshd} -D -e -f {home}/sshd_config 2>{home}/sshd.log &
        wait
    """
    return new_init(script, namespace, stdin=subprocess.DEVNULL)


def _wait_for_ssh(net: Network, host: Host, directory: Path) -> None:
    command = ["ip", "netns", "exec", net.controller, "ssh", "-F", str(directory / "ssh_config"), "-o", "BatchMode=yes"]
    for _ in range(50):
        done = subprocess.run([*command, host.name, "hostname"], capture_output=True, text=True, check=False)
        if done.stdout.strip() == host.name:
            return
        time.sleep(0.2)
    log = (directory / host.name / "sshd.log").read_text()
    raise SystemExit(f"{host.name} does not answer: {done.stderr}\n{log}")


def write_suite(directory: Path) -> set[str]:
    """Write the test files. Returns the ids of all tests."""
    directory.mkdir()
    (directory / "pytest.ini").write_text("[pytest]\n")
    for kind, text in SUITE.items():
        for copy in range(1, (SOAKS if kind == "soak" else COPIES) + 1):
            (directory / f"test_{kind}_{copy}.py").write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    listed = subprocess.run([*command, "."], cwd=directory, capture_output=True, text=True, check=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


class Log:
    """The event log of a run, read again whenever it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def in_flight(self, host: str) -> set[str]:
        tests = Counter(event["test"] for event in self.events("started") if event["host"] == host)
        tests.subtract(event["test"] for event in self.events("finished") if event["host"] == host)
        return {test for test, count in tests.items() if count > 0}


class Claims:
    def __init__(self) -> None:
        self.failed = 0

    def check(self, claim: str, holds: object, seen: object = "") -> None:
        self.failed += not holds
        print(f"  {'yes' if holds else 'NO '} {claim}{f': {seen}' if seen != '' else ''}", flush=True)


@dataclass
class Ended:
    status: int | None
    seconds: float
    waited: float
    """From the loss of a host to the end of the run."""
    lost: set[str]
    """What ran on that host at that moment."""
    scrapes: list[str]
    output: str


def scrape(net: Network) -> str:
    """The metrics, read in the controller's namespace; empty while there are none."""
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/metrics', timeout=5).read().decode())"
    return run("ip", "netns", "exec", net.controller, sys.executable, "-c", code, check=False)


def run_suite(net: Network, directory: Path, options: argparse.Namespace, lose: Callable[[Host], None] | None) -> Ended:
    suite, log = directory / "suite", Log(directory / "run.jsonl")
    hosts = [
        f"--tx={options.workers}*ssh={host.name}//ssh_config={directory}/ssh_config//python={sys.executable}"
        f"//chdir={directory}/{host.name}/work"
        for host in net.hosts
    ]
    # Workers of pytest-rerunfailures connect to 127.0.0.1, where no controller is.
    arguments = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:rerunfailures", "-ra"]
    arguments += [f"--dist={options.dist}", *hosts]
    arguments += [f"--rsyncdir={suite}", f"--rl-soak={SOAK}", "--rl-stability", f"--rl-jsonl={log.path}"]
    arguments += [f"--rl-html={directory}/run.html", f"--rl-metrics-port={PORT}", str(suite)]
    script = f"cd {directory} && export PYTHONDONTWRITEBYTECODE=1 && exec {' '.join(arguments)}"
    lost: set[str] = set()
    scrapes, lost_at, started = [], 0.0, time.monotonic()
    with open(directory / "output.txt", "wb") as output:
        controller = new_init(script, net.controller, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while controller.poll() is None and time.monotonic() - started < LONGEST:
                time.sleep(1)
                scrapes.append(scrape(net))
                victim = next(host for host in net.hosts if host.name == LOST_HOST)
                if lose and not lost and any("test_laps" in test for test in log.in_flight(victim.name)):
                    time.sleep(3)
                    lost, lost_at = log.in_flight(victim.name), time.monotonic()
                    lose(victim)
        finally:
            status = controller.poll()
            end(controller)
    now = time.monotonic()
    text = (directory / "output.txt").read_text(errors="replace")
    return Ended(status, now - started, now - lost_at if lost else 0.0, lost, scrapes, text)


def expected_word(test: str) -> str:
    return WORDS.get(test.split("::")[1].split("[")[0], "")


def judge(ended: Ended, directory: Path, tests: set[str], calm: bool, claims: Claims) -> None:
    """Compare what was logged, shown and served with what the suite must give."""
    log = Log(directory / "run.jsonl")
    finished = log.events("finished")
    last = {event["test"]: event for event in finished}
    words = {test: (event.get("verdict") or {}).get("word", "") for test, event in last.items()}
    hosts = Counter(event["host"] for event in finished)
    claims.check("the run ended by itself, as a failed one", ended.status == 1, f"status {ended.status}")
    claims.check("both hosts ran tests", set(hosts) == set(HOSTS), dict(hosts))
    missing, odd = tests - set(last), set(last) - tests
    claims.check("one log has the end of every test", not missing and not odd, [*missing, *odd] or len(last))
    wrong = {
        test: (event["outcome"], words[test])
        for test, event in last.items()
        if test not in ended.lost
        and (words[test], event["outcome"]) != ((word := expected_word(test)), "failed" if word else "passed")
    }
    claims.check("every outcome is the right one", not wrong, wrong or dict(Counter(filter(None, words.values()))))
    claims.check("no error of pytest-rlstability or pytest", not INTERNAL.search(ended.output))
    if not calm:
        claims.check("a host was lost while a soak ran on it", ended.lost, ended.lost)
        failures = {event["test"] for event in finished if "connection to its host broke" in event.get("report", "")}
        claims.check("just what ran there failed with it", failures == ended.lost, failures)
        again = {test: last[test]["outcome"] for test in failures if last[test]["host"] != LOST_HOST}
        print(f"      xdist ran again: {again or 'nothing'}")
    _judge_blame(last, ended, claims)
    page = (directory / "run.html").read_text() if (directory / "run.html").exists() else ""
    claims.check("one page has every test", all(_in_page(test, page) for test in tests), f"{len(page):,} bytes")
    running = {
        event["host"] for text in ended.scrapes for event in log.events("started") if f'test="{event["test"]}"' in text
    }
    claims.check("one metrics endpoint showed tests of both hosts", running == set(HOSTS), sorted(running))
    loss = f", {ended.waited:.0f} s of them after the loss" if ended.lost else ""
    summary = ended.output.rstrip().splitlines()[-1:]
    print(f"      {ended.seconds:.0f} s{loss}; pytest: {' '.join(summary).strip('= ')}", flush=True)


def _in_page(test: str, page: str) -> bool:
    return json.dumps(test)[1:-1] in page or test.replace("[", "&#91;") in page


def _judge_blame(last: dict[str, dict[str, Any]], ended: Ended, claims: Claims) -> None:
    for copy in range(1, COPIES + 1):
        names = [f"test_blame_{copy}.py::test_{who}" for who in ("culprit", "victim")]
        if not ended.lost & set(names) and all(name in last for name in names):
            culprit, victim = (last[name] for name in names)
            named = names[0] in victim.get("report", "") or names[0] in json.dumps(victim.get("verdict"))
            same = culprit["host"] == victim["host"] and culprit["worker"] == victim["worker"]
            claims.check(f"blame {copy} names the culprit where it ran", named and same, victim["host"])
            claims.check(f"culprit {copy} is an error of its own", f"ERROR suite/{names[0]}" in ended.output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("calm", "link", "power"))
    parser.add_argument("--dist", default="loadfile", help="as for pytest-xdist (default: loadfile)")
    parser.add_argument("--workers", type=int, default=2, help="on each host (default: 2)")
    parser.add_argument("--show", action="store_true", help="print pytest's output too")
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    claims = Claims()
    for what in [options.only] if options.only else ["calm", "link", "power"]:
        print(f"{what}:", flush=True)
        with tempfile.TemporaryDirectory(prefix="rl2h-", dir="/tmp") as temporary, suppress(KeyboardInterrupt):
            directory = Path(temporary)
            tests = write_suite(directory / "suite")
            with network(directory) as net:

                def lose(host: Host, what: str = what, net: Network = net) -> None:
                    net.link_down(host)
                    if what == "power":
                        end(host.init)

                ended = run_suite(net, directory, options, None if what == "calm" else lose)
                if options.show or claims.failed:
                    print(ended.output)
                judge(ended, directory, tests, what == "calm", claims)
            continue
        return 130
    print("all claims hold" if not claims.failed else f"{claims.failed} claims do not hold")
    return 1 if claims.failed else 0


if __name__ == "__main__":
    sys.exit(main())
