"""The page in a real browser: drawn, searched, zoomed, printed, used by keyboard, with nothing in its console."""

from __future__ import annotations

import sys

import pytest
from report_logs import HOSTILE, Log

if sys.platform == "win32":
    pytest.skip("Chromium is driven over pipes that Windows does not have", allow_module_level=True)
pytest.importorskip("plotly")

from browser import running_browser

from pytest_rlstability.reports.log_reader import read_runs
from pytest_rlstability.reports.page_file import write_page

OPEN_LEAK = "document.querySelector('.test.LEAK > summary').click()"
DRAWN = "document.querySelector('.test.LEAK .chart .main-svg') !== null"
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def browser():
    with running_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One of everything, hostile names included."""
    directory = tmp_path_factory.mktemp("report")
    log = Log()
    log.leak("t.py::test_leaks")
    verdict = {
        "word": "CRASH",
        "headline": f"SIGSEGV {HOSTILE}",
        "sections": [["Python stacks", HOSTILE]],
        "facts": {"signal": "SIGSEGV", "phase": "call"},
    }
    log.started("t.py::test_crashes")
    for lap in range(3):
        log.add("sample", "t.py::test_crashes", lap=lap, seconds=lap, values={HOSTILE: lap, "rss": 1e6 * lap})
    log.add("finished", "t.py::test_crashes", outcome="failed", verdict=verdict, duration=1.0, stages=["load", "tick"],
             reproduce="python -m pytest t.py::test_crashes", output={"Captured stdout call": HOSTILE})  # fmt: skip
    log.test(f"t.py::test_it[{HOSTILE}{'x' * 200}]", "failed", report=HOSTILE)
    log.test("t.py::test_passes")
    log.started("t.py::test_cut_off")
    path = directory / "run.html"
    write_page(path, read_runs([log.write(directory / "1.jsonl")]))
    return path


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    directory = tmp_path_factory.mktemp("long")
    log = Log()
    for number in range(10_000):
        log.test(f"tests/test_{number // 100}.py::test_it[{number}]", "failed" if number == 7777 else "passed")
    path = directory / "run.html"
    write_page(path, read_runs([log.write(directory / "run.jsonl")]))
    return path


def test_everything_opens_without_a_complaint_and_without_a_network(browser, page):
    browser.open(page)
    browser.evaluate("document.querySelectorAll('.test > summary').forEach((summary) => summary.click())")
    browser.wait_for("document.querySelectorAll('.test .body').length === 5")
    browser.evaluate("document.querySelectorAll('.body details').forEach((details) => { details.open = true; })")
    for number in range(browser.evaluate("document.querySelectorAll('.chart').length")):
        browser.evaluate(f"document.querySelectorAll('.chart')[{number}].scrollIntoView()")
        browser.wait_for(f"document.querySelectorAll('.chart')[{number}].querySelector('.main-svg') !== null")
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.evaluate("window.pwned") is None
    shown = browser.evaluate("document.querySelector('.test.CRASH').textContent")
    assert shown.count(HOSTILE) >= 3
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.evaluate("document.querySelector('.stages .died').textContent") == "tick"


def test_the_chart_shows_warm_up_slope_and_limits(browser, page):
    browser.open(page)
    browser.evaluate(OPEN_LEAK)
    browser.wait_for(DRAWN)
    chart = "document.querySelector('.test.LEAK .chart')"
    names = browser.evaluate(f"{chart}.data.map((trace) => trace.name)")
    assert {"malloc bytes in use", "malloc bytes in use: 1.0 KiB per lap"} <= set(names)
    slope = browser.evaluate(f"{chart}.data.find((trace) => trace.name === 'file descriptors: 1 per lap').y")
    assert (slope[0], slope[-1]) == (20, 59)
    limit = browser.evaluate(f"{chart}.data.find((trace) => trace.name.includes('limit 0.5 per lap')).y")
    assert (limit[0], limit[-1]) == (20, 39.5)
    assert "file descriptors: limit 500" in names
    (shade,) = browser.evaluate(f"{chart}.layout.shapes.map((shape) => [shape.name, shape.x0, shape.x1])")
    assert shade == ["warm-up", 0, 20]
    browser.evaluate(f"Plotly.relayout({chart}, {{'xaxis.range': [30, 40]}}).then(() => true)")
    assert browser.evaluate(f"{chart}.layout.xaxis.range") == [30, 40]
    axes = browser.evaluate(f"Object.keys({chart}.layout).filter((name) => name.startsWith('yaxis')).length")
    assert axes == 2, "a signal has an axis of its own"
    assert browser.evaluate(f"{chart}.layout.yaxis2.range ?? {chart}.layout.yaxis.range")[1] < 100, "not up to 500"
    browser.evaluate("[...document.querySelectorAll('.axis button')].find((b) => b.textContent === 'by time').click()")
    browser.wait_for(f"{chart}.layout.xaxis.title.text === 'elapsed (s)'")
    assert browser.complaints == []


def test_what_stayed_flat_is_folded(browser, page):
    browser.open(page)
    browser.evaluate(OPEN_LEAK)
    browser.wait_for(DRAWN)
    fold = "[...document.querySelectorAll('.test.LEAK .body > details')].find((one) => one.querySelector('.chart'))"
    assert browser.evaluate(f"{fold}.firstChild.textContent") == "2 signals that stayed flat"
    assert browser.evaluate(f"{fold}.querySelector('.main-svg')") is None
    browser.evaluate(f"{fold}.open = true")
    browser.evaluate(f"{fold}.scrollIntoView()")
    browser.wait_for(f"{fold}.querySelector('.chart')?.data?.some((trace) => trace.name === 'resident memory')")


def test_a_long_course_is_a_band_that_reaches_its_peak(browser, tmp_path):
    log = Log()
    log.started("t.py::test_soaks")
    for lap in range(5000):
        value = 9 * 2**20 if lap == 3210 else 2**20 + lap % 2
        log.add("sample", "t.py::test_soaks", lap=lap, seconds=lap, values={"rss": value})
    write_page(tmp_path / "run.html", read_runs([log.write(tmp_path / "run.jsonl")]))
    browser.open(tmp_path / "run.html")
    browser.evaluate("document.querySelector('.test > summary').click()")
    browser.wait_for("document.querySelector('.chart .main-svg') !== null")
    lowest, highest = browser.evaluate("document.querySelector('.chart').data.map((trace) => Math.max(...trace.y))")[:2]
    assert (lowest, highest) == (pytest.approx(1, abs=0.01), 9)
    assert browser.evaluate("document.querySelector('.chart').data[1].x.length") < 1024
    assert browser.complaints == []


def test_dark_and_light_follow_the_reader(browser, page):
    browser.open(page, dark=True)
    browser.evaluate(OPEN_LEAK)
    browser.wait_for(DRAWN)
    paper = "document.querySelector('.test.LEAK .chart').layout.paper_bgcolor"
    body = "getComputedStyle(document.body).backgroundColor"
    dark = browser.evaluate(paper), browser.evaluate(body)
    browser.paint("light")
    browser.wait_for(f"{paper} !== {dark[0]!r}")
    assert browser.evaluate(body) != dark[1]
    assert browser.evaluate(paper) == "#ffffff"


def test_a_phone_never_scrolls_sideways(browser, page):
    browser.open(page, width=360, height=700)
    assert browser.evaluate(OVERFLOW) <= 0
    browser.evaluate("document.querySelectorAll('.test > summary').forEach((summary) => summary.click())")
    browser.evaluate("document.querySelector('.test.LEAK .chart').scrollIntoView()")
    browser.wait_for(DRAWN)
    assert browser.evaluate(OVERFLOW) <= 0
    assert browser.evaluate("document.querySelector('.test.LEAK .chart .main-svg').clientWidth") <= 360


def test_the_keyboard_is_enough(browser, page):
    browser.open(page)
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    browser.press("/", 191, "/")
    assert browser.evaluate("document.activeElement.id") == "search"
    for letter in "leaks":
        browser.press(letter, ord(letter.upper()), letter)
    browser.wait_for("document.getElementById('count').textContent === '1 of 5 tests'")
    for _ in range(20):
        browser.press("Tab", 9)
        if browser.evaluate("document.activeElement.matches('.test > summary')"):
            break
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter", 13, "\r")
    browser.wait_for("document.querySelector('.test.LEAK').open")
    browser.wait_for(DRAWN)


def test_sorting_filtering_and_copying(browser, page):
    browser.open(page)
    words = "[...document.querySelectorAll('.test .word')].map((word) => word.textContent)"
    assert browser.evaluate(words) == ["CRASH", "LEAK", "FAILED", "NO END", "passed"]
    button = "[...document.querySelectorAll('#sorting button')].find((button) => button.textContent === 'Duration')"
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(words)[0] == "LEAK"
    assert browser.evaluate(f"{button}.getAttribute('aria-pressed')") == "true"
    browser.evaluate("document.querySelector('#tally .CRASH').click()")
    assert browser.evaluate(words) == ["CRASH"]
    browser.evaluate("document.querySelector('.test > summary').click()")
    browser.wait_for("document.querySelector('.command button') !== null")
    browser.evaluate("document.querySelector('.command button').click()")
    browser.wait_for("document.querySelector('.command button').textContent !== 'Copy'")


def test_ten_thousand_tests_open_and_scroll(browser, long_page):
    browser.open(long_page)
    assert browser.evaluate("document.getElementById('count').textContent") == "10,000 tests"
    assert browser.evaluate("document.querySelector('.test').className") == "test FAILED"
    most = browser.evaluate("document.getElementsByTagName('*').length")
    for part in range(1, 21):
        browser.evaluate(f"scrollTo(0, document.documentElement.scrollHeight * {part / 20})")
        browser.evaluate("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        most = max(most, browser.evaluate("document.getElementsByTagName('*').length"))
    browser.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    browser.wait_for("document.getElementById('list').textContent.includes('test_it[9999]')")
    assert most < 10_000  # all rows at once would be some 80,000
    browser.evaluate("location.hash = '#' + encodeURIComponent('tests/test_50.py::test_it[5000]')")
    browser.wait_for("document.querySelector('.test[open]')?.textContent.includes('test_it[5000]')")
    assert browser.complaints == []


def test_a_run_without_tests_is_a_page_too(browser, tmp_path):
    write_page(tmp_path / "run.html", read_runs([Log().write(tmp_path / "run.jsonl")]))
    browser.open(tmp_path / "run.html")
    assert browser.evaluate("document.querySelector('h1').textContent") == "No trouble in 0 tests"
    assert "Python 3.11.7" in browser.evaluate("document.getElementById('runs').textContent")
    assert browser.complaints == []


def test_print_opens_what_failed_with_its_charts(browser, page, tmp_path):
    browser.open(page)
    browser.evaluate(
        "addEventListener('afterprint', () => { window.charted = document.querySelectorAll('.main-svg').length; })"
    )
    browser.print(tmp_path / "run.pdf")
    assert (tmp_path / "run.pdf").read_bytes().startswith(b"%PDF")
    assert browser.evaluate("document.querySelectorAll('.test[open]').length") == 4
    assert browser.evaluate("window.charted") > 0
    assert browser.complaints == []


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory):
    """The logs of two machines: a crash on one of them, a soak, a diagnosis, an undecided check, a plain failure."""
    directory = tmp_path_factory.mktemp("machines")
    ours, theirs = Log(host="here"), Log(host="there")
    sections = [
        ["", "at /game/env.py:4 in step"],
        ["", "It fails alone too."],
        ["Python stacks", 'File "/game/env.py", line 4, in step'],
        ["Diagnosis", "It dies every time.\n\nTry next:\n  - look at fill_row\n\ncondition  died\none CPU    0 of 8"],
        ["Process", "pid 7"],
    ]
    verdict = {
        "word": "CRASH", "headline": "SIGSEGV in call", "sections": sections, "facts": {"signal": "SIGSEGV"},
        "location": {"file": "/game/env.py", "line": 4, "function": "step"},
    }  # fmt: skip
    for log in (ours, theirs):
        log.lines[0] = log.lines[0].replace('"seed"', '"root": "/game", "seed"')
    theirs.lines[0] = theirs.lines[0].replace("pytest 9.2.0", "pytest 8.4.2")
    ours.started("t.py::test_dies")
    for lap in range(30):
        ours.add("sample", "t.py::test_dies", lap=lap, seconds=lap, values={"rss": 1e6 * (lap + 1)})
    ours.add("finished", "t.py::test_dies", outcome="failed", duration=1.0, verdict=verdict, reproduce="pytest t.py")
    theirs.test("t.py::test_dies")
    for log in (ours, theirs):
        log.test("t.py::test_unclear", undecided="rl_no_leak undecided: too few laps")
        log.test("t.py::test_wrong", "failed", message="KeyError: 'obs'", report="...",
                 location={"file": "/game/model.py", "line": 9, "function": "act"})  # fmt: skip
    soak = {"duration": 60.0, "seconds": 30.0, "laps": 300, "verdict": "clean", "memory": 5e7, "lap_seconds_last": 0.1}
    ours.test("t.py::test_soaks", "interrupted", soak=soak)
    path = directory / "both.html"
    write_page(path, read_runs([ours.write(directory / "1.jsonl"), theirs.write(directory / "2.jsonl")]))
    return path


def test_the_cause_comes_before_the_charts(browser, two_machines):
    browser.open(two_machines)
    browser.evaluate("document.querySelector('.test.CRASH > summary').click()")
    browser.wait_for("document.querySelector('.test.CRASH .body') !== null")
    titles = browser.evaluate("[...document.querySelectorAll('.test.CRASH h3')].map((title) => title.textContent)")
    assert titles == ["Diagnosis", "Python stacks", "Reproduce", "Charts", "Facts"]
    assert browser.evaluate("document.querySelector('.test.CRASH .what').textContent") == "It fails alone too."
    assert browser.evaluate("document.querySelector('.test.CRASH .body li').textContent") == "look at fill_row"
    assert browser.evaluate("document.querySelector('.test.CRASH .where').textContent") == "env.py:4 in step"
    assert browser.complaints == []


def test_undecided_and_ordinary_failures_say_what_they_are(browser, two_machines):
    browser.open(two_machines)
    shown = browser.evaluate("document.querySelector('.test.undecided').textContent")
    assert "UNDECIDED" in shown
    assert "too few laps" in shown
    tones = browser.evaluate(
        "['.undecided', '.passed', '.FAILED'].map((name) => getComputedStyle("
        "document.querySelector(`.test${name} .word`)).color)"
    )
    assert len(set(tones)) == 3
    failed = browser.evaluate("document.querySelector('.test.FAILED').textContent")
    assert "KeyError: 'obs'" in failed
    assert "model.py:9 in act" in failed
    browser.evaluate("document.querySelector('#tally .undecided').click()")
    assert browser.evaluate("document.getElementById('count').textContent") == "2 of 7 tests"


def test_machines_are_compared(browser, two_machines):
    browser.open(two_machines)
    text = browser.evaluate("document.getElementById('runs').textContent")
    assert "Not the same everywhere" in text
    links = browser.evaluate("[...document.querySelectorAll('#runs a')].map((link) => link.textContent)")
    assert links == ["CRASH", "passed"]
    assert browser.evaluate("document.querySelector('tr.differs').textContent") == "pytest9.2.08.4.2"
    browser.evaluate("document.querySelectorAll('#runs a')[1].click()")
    browser.wait_for("document.querySelector('.test.passed[open] .body') !== null")


def test_each_test_has_an_address(browser, two_machines):
    browser.open(two_machines)
    browser.evaluate("document.querySelector('.test.CRASH > summary').click()")
    browser.wait_for("decodeURIComponent(location.hash) === '#t.py::test_dies @ run 1 main'")
    browser.evaluate("location.hash = '#' + encodeURIComponent('t.py::test_dies @ run 2 main')")
    browser.wait_for("document.querySelector('.test.passed[open]') !== null")
    assert browser.evaluate("document.querySelector('.test.passed .link').getAttribute('href')").endswith("main")


def test_a_soak_shows_how_far_it_came(browser, two_machines):
    browser.open(two_machines)
    browser.evaluate("document.querySelector('.test.UNFINISHED > summary').click()")
    browser.wait_for("document.querySelector('progress') !== null")
    assert browser.evaluate("document.querySelector('progress').value") == 0.5
    assert "laps steady at 0.1 s" in browser.evaluate("document.querySelector('.test.UNFINISHED').textContent")
