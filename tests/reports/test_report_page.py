"""What the page shows, and that nothing a test said can become part of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from report_logs import HOSTILE, Log

from pytest_rlstability import __main__ as commands
from pytest_rlstability.reports import html, page_file
from pytest_rlstability.reports.log_reader import read_runs
from pytest_rlstability.reports.page_data import page_data
from pytest_rlstability.reports.page_text import readable

needs_plotly = pytest.mark.skipif(find_spec("plotly") is None, reason="pip install 'pytest-rlstability[report]'")


def shown(tmp_path, *logs):
    return page_data(read_runs([log.write(tmp_path / f"run{number}.jsonl") for number, log in enumerate(logs)]))


class Scripts(HTMLParser):
    """The scripts of a page as a browser finds them, and the elements outside of them."""

    def __init__(self, text):
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.elements: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self._inside = dict(attributes).get("id", f"script {len(self.elements)}") if tag == "script" else ""

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data


def test_worst_first(tmp_path):
    log = Log()
    log.test("t.py::test_passes")
    log.test("t.py::test_skipped", "skipped", reason="no GPU")
    log.test("t.py::test_fails", "failed", report="E   assert 1 == 2")
    for word in ("FLAKY", "LEAK", "STALL", "CRASH"):
        log.test(f"t.py::test_{word}", "failed", word)
    log.test("t.py::test_expected", "skipped", "CRASH")
    log.test("t.py::test_xfail", "skipped", xfailed=True)
    log.started("t.py::test_cut_off")
    data = shown(tmp_path, log)
    assert [(test["status"], test["id"].partition("::")[2]) for test in data["tests"]] == [
        ("CRASH", "test_CRASH"),
        ("STALL", "test_STALL"),
        ("LEAK", "test_LEAK"),
        ("FLAKY", "test_FLAKY"),
        ("FAILED", "test_fails"),
        ("UNFINISHED", "test_cut_off"),
        ("xfailed", "test_expected"),
        ("xfailed", "test_xfail"),
        ("skipped", "test_skipped"),
        ("passed", "test_passes"),
    ]
    assert page_file.title(data) == (
        "1 crash, 1 stall, 1 leak, 1 flaky test, 1 other failure and 1 unfinished test in 10 tests"
    )
    headlines = {test["id"].partition("::")[2]: test.get("headline") for test in data["tests"]}
    assert headlines["test_fails"] == "assert 1 == 2"
    assert headlines["test_skipped"] == "no GPU"
    assert headlines["test_cut_off"].startswith("did not finish")


def test_a_passing_test_without_samples_is_one_short_row(tmp_path):
    log = Log()
    log.test("t.py::test_passes", output={}, stages=[], report="", phases={"call": 0.1})
    (test,) = shown(tmp_path, log)["tests"]
    assert len(json.dumps(test)) < 150
    assert not {"detail", "course"} & set(test)


def test_fit_warm_up_and_limits(tmp_path):
    log = Log()
    log.leak("t.py::test_leaks", slope=1000.0)
    (test,) = shown(tmp_path, log)["tests"]
    course = test["course"]
    assert course["warmup"] == 20
    assert course["still"] == {"threads": 1}
    assert {"rss", "malloc", "fds"} <= set(course["columns"])
    fds, malloc = course["judged"]
    assert (fds["slope"], fds["slope_limit"], fds["most"]) == (1, 0.5, 500)
    assert course["lap"][fds["row"]] == 20
    assert fds["start"] == 20  # the line goes through the samples: 20 files where measuring began
    assert malloc["start"] == 10_000_000


def test_a_verdict_stands_in_where_no_check_judged(tmp_path):
    log = Log()
    log.started("t.py::test_probe")
    for lap in range(10):
        log.add("sample", "t.py::test_probe", lap=lap, seconds=lap, values={"food": 3.0 * lap})
    verdict = {"word": "LEAK", "headline": "probe food", "facts": {"signal": "food", "per_lap": 3.0, "limit": 1}}
    log.add("finished", "t.py::test_probe", outcome="failed", verdict=verdict)
    (test,) = shown(tmp_path, log)["tests"]
    (judged,) = test["course"]["judged"]
    assert (judged["slope"], judged["slope_limit"], judged["start"]) == (3, 1, 0)


def test_runs_hosts_and_workers_are_told_apart(tmp_path):
    here, there = Log("here"), Log("there", "gw3")
    here.test("t.py::test_it", "failed", "CRASH")
    there.test("t.py::test_it")
    data = shown(tmp_path, here, there)
    assert [run["host"] for run in data["runs"]] == ["here", "there"]
    assert [(run["began"], run["ended"] - run["began"]) for run in data["runs"]] == [(1_790_000_001.25, 2.0)] * 2
    crash, passed = data["tests"]
    assert (crash["run"], data["origins"][crash["origin"]]["host"]) == (0, "here")
    assert (passed["run"], data["origins"][passed["origin"]]) == (1, {"host": "there", "worker": "gw3"})


def test_earlier_attempts_are_told(tmp_path):
    log = Log()
    log.test("t.py::test_it", "failed", "CRASH")
    log.test("t.py::test_it")
    (test,) = shown(tmp_path, log)["tests"]
    assert test["status"] == "passed"
    assert [attempt["status"] for attempt in test["detail"]["earlier"]] == ["CRASH"]


def test_a_run_in_which_everything_fails_at_length_stays_a_page(tmp_path):
    log = Log()
    for number in range(300):
        log.test(f"t.py::test_{number}", "failed", report="long " * 40_000)
    data = shown(tmp_path, log)
    assert len(json.dumps(data)) < 24_000_000
    assert "characters left out of this page" in data["tests"][0]["detail"]["report"]


def test_many_sampled_passing_tests_are_drawn_coarsely_and_the_failed_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("pytest_rlstability.reports.page_data._ALL_POINTS", 1000)
    log = Log()
    for number in range(6):
        log.started(f"t.py::test_{number}")
        for lap in range(200):
            log.add("sample", f"t.py::test_{number}", lap=lap, seconds=lap, values={"rss": float(lap % 7)})
        log.add("finished", f"t.py::test_{number}", outcome="passed" if number else "failed")
    failed, *passed = shown(tmp_path, log)["tests"]
    assert len(failed["course"]["lap"]) == 200
    assert all(len(test["course"]["lap"]) < 150 for test in passed)
    assert all(max(test["course"]["columns"]["rss"]) == 6 for test in passed)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07shell", "shell"),
        (" 1%\r50%\r99%\ndone\r\n", "99%\ndone\n"),
        ("a\x00b\x9bc", "a\ufffdb\ufffdc"),
        ("tab\tkept", "tab\tkept"),
        ("x" * 50, "xxx\n[... 40 characters left out of this page ...]\nxxxxxxx"),
    ],
)
def test_texts_are_made_readable(text, seen):
    assert readable(text, 10 if len(text) == 50 else 1000) == seen


@needs_plotly
def test_nothing_a_test_said_becomes_part_of_the_page(tmp_path):
    log = Log(HOSTILE, HOSTILE)
    log.lines.clear()
    log.add("session", "", platform=HOSTILE, versions=HOSTILE, seed=HOSTILE, arguments=[HOSTILE, "<!--"])
    verdict = {"word": "CRASH", "headline": HOSTILE, "sections": [[HOSTILE, HOSTILE]], "facts": {HOSTILE: HOSTILE}}
    log.started(HOSTILE)
    log.add("sample", HOSTILE, lap=1, seconds=1, values={HOSTILE: 1.0})
    log.add("sample", HOSTILE, lap=2, seconds=2, values={HOSTILE: 2.0})
    log.add("finished", HOSTILE, outcome="failed", verdict=verdict, reproduce=HOSTILE, output={HOSTILE: HOSTILE})
    log.test("t.py::test_it[<!-- \ud800 \u2028 &amp; {{data}}]", "failed", report=HOSTILE)
    page = tmp_path / "run.html"
    page_file.write_page(page, read_runs([log.write(tmp_path / "run.jsonl")]))
    text = page.read_text()
    found = Scripts(text)
    assert "img" not in found.elements
    assert found.elements.count("script") == 5
    data = json.loads(found.scripts["data"])
    assert data["tests"][0]["id"] == HOSTILE
    assert data["tests"][1]["id"] == "t.py::test_it[<!-- \ud800 \u2028 &amp; {{data}}]"
    assert "<" not in found.scripts["data"]
    assert text.count("window.pwned = 1") == found.scripts["data"].count("window.pwned = 1") > 5


@needs_plotly
def test_the_page_loads_nothing(tmp_path):
    log = Log()
    log.leak("t.py::test_leaks")
    page = tmp_path / "deep" / "down" / "run.html"
    page_file.write_page(page, read_runs([log.write(tmp_path / "run.jsonl")]))
    text = page.read_text()
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:,)", outside)
    assert "default-src 'none'" in outside
    assert "{{" not in outside
    assert [path.name for path in page.parent.iterdir()] == ["run.html"]


def test_a_library_cannot_end_its_script_early():
    assert page_file.script_text("a('</script>', '<!--', '<SCRIPT')") == (r"a('\x3c/script>', '\x3c!--', '\x3cSCRIPT')")


# the command


def run_command(*arguments):
    return commands.main(["report", *map(str, arguments)])


@needs_plotly
def test_the_command_makes_a_page_of_many_logs(tmp_path, capsys):
    here, there = Log("here"), Log("there")
    here.test("t.py::test_it", "failed", "CRASH")
    there.test("t.py::test_it")
    there.lines.append('{"event": "fini')
    logs = [here.write(tmp_path / "1.jsonl"), there.write(tmp_path / "2.jsonl")]
    assert run_command(*logs, "-o", tmp_path / "out.html") == 0
    printed = capsys.readouterr()
    assert f"report written to {tmp_path / 'out.html'} (2 tests)" in printed.out
    assert "2.jsonl: 1 damaged line left out" in printed.err
    data = json.loads(Scripts((tmp_path / "out.html").read_text()).scripts["data"])
    assert len(data["runs"]) == 2


@needs_plotly
def test_the_command_refuses_what_it_cannot_read_or_write(tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    assert run_command(other, "-o", tmp_path / "out.html") == 2
    assert "other.txt: not an event log" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()
    log = Log().write(tmp_path / "run.jsonl")
    assert run_command(log, "-o", other / "out.html") == 2
    assert "cannot write" in capsys.readouterr().err


def test_without_plotly_both_say_what_to_install(tmp_path, capsys, monkeypatch, pytestconfig):
    monkeypatch.setattr(page_file, "has_charts", lambda: False)
    assert run_command(Log().write(tmp_path / "run.jsonl"), "-o", tmp_path / "out.html") == 2
    assert "pip install 'pytest-rlstability[report]'" in capsys.readouterr().err
    monkeypatch.setattr(html, "path_option", lambda config, name: tmp_path / "out.html")
    with pytest.raises(pytest.UsageError, match=re.escape("pip install 'pytest-rlstability[report]'")):
        html.open_report(pytestconfig)


@needs_plotly
def test_the_commands_in_the_docs_do_what_they_say(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("rlstability report")]
    assert len(lines) == 2
    monkeypatch.chdir(tmp_path)
    for words in lines:
        for name in (word for word in words if word.endswith(".jsonl")):
            log = Log(name)
            log.test("t.py::test_it")
            log.write(tmp_path / name)
        assert commands.main(words) == 0, capsys.readouterr().err
        assert (tmp_path / words[-1]).stat().st_size > 1_000_000
