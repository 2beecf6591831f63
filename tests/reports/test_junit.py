"""``rlstability report --junit``: the JUnit file of a run, from its log."""

from __future__ import annotations

from xml.etree import ElementTree

from report_logs import Log

from pytest_rlstability import __main__ as commands


def cases_of(path):
    """What a JUnit file says of each test: element, first line of the message, and properties, by class and name."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        ends = [(end.tag, end.get("type"), end.get("message").splitlines()[0]) for end in case if end.get("message")]
        properties = {one.get("name"): one.get("value") for one in case.iter("property")}
        found[case.get("classname"), case.get("name")] = (*ends, properties)
    return found


def test_it_says_what_pytests_own_file_says(run_pytest):
    source = """
        import os, pytest

        def test_dies():
            os.abort()

        def test_fails():
            assert [1, 2] == [1, 3]

        class TestGroup:
            @pytest.mark.parametrize("path", ["a/b::c"])
            def test_passes(self, path):
                pass

        @pytest.mark.skip(reason="no GPU here")
        def test_skipped():
            pass

        @pytest.mark.xfail(reason="not yet")
        def test_expected():
            assert 0
    """
    run_pytest(source, "--junitxml=own.xml", "--rl-jsonl=run.jsonl", "--rl-seed=7")
    log, made = run_pytest.path / "run.jsonl", run_pytest.path / "made.xml"
    assert commands.main(["report", str(log), "--junit", str(made)]) == 0
    found = cases_of(made)
    assert found == cases_of(run_pytest.path / "own.xml")
    ((tag, _, message), properties) = next(found[key] for key in found if key[1] == "test_dies")
    assert tag == "failure"
    assert message.startswith("CRASH: ")
    assert (properties["rl_stability.verdict"], properties["rl_stability.seed"]) == ("CRASH", "7")
    suites = [next(ElementTree.parse(made.with_name(name)).iter("testsuite")) for name in ("made.xml", "own.xml")]
    counts, expected = (suite.attrib for suite in suites)
    names = ("name", "tests", "failures", "errors", "skipped", "hostname")
    assert [counts[name] for name in names] == [expected[name] for name in names]
    assert counts.keys() == expected.keys()


def test_a_run_that_was_killed_has_its_verdicts_and_the_test_it_was_in(tmp_path, capsys):
    log = Log()
    log.test("sub/t.py::test_leaks", "failed", "LEAK")
    log.test("sub/t.py::test_odd[\x1b[31m\x00\ud800]", "failed", report="E   \x00 odd")
    log.started("sub/t.py::TestSoak::test_soaks")
    log.test("sub/t.py::test_cut")
    path = log.write(tmp_path / "run.jsonl", cut=20)
    assert commands.main(["report", str(path), "--junit", str(tmp_path / "out.xml")]) == 0
    assert "1 damaged line left out" in capsys.readouterr().err
    found = cases_of(tmp_path / "out.xml")
    ((tag, _, message), _) = found["sub.t", "test_leaks"]
    assert (tag, message) == ("failure", "LEAK: leak of sub/t.py::test_leaks")
    ((tag, _, message), _) = found["sub.t.TestSoak", "test_soaks"]
    assert tag == "error"
    assert message.startswith("did not finish: the log ends")
    assert len(found) == 4
    suite = next(ElementTree.parse(tmp_path / "out.xml").iter("testsuite"))
    assert (suite.get("errors"), suite.get("failures"), suite.get("tests")) == ("2", "2", "4")


def test_a_file_must_be_asked_for(tmp_path, capsys):
    assert commands.main(["report", str(Log().write(tmp_path / "run.jsonl"))]) == 2
    assert "give -o OUT.html, --junit OUT.xml, or both" in capsys.readouterr().err
