"""What cannot be meant is refused before any test runs, with the option or the line to change."""

from __future__ import annotations

import pytest

from pytest_rlstability.__main__ import COMMANDS, main
from tests.conftest import RunPytest


@pytest.mark.parametrize("flag", ["--rl-jsonl=run.jsonl", "--rl-html=run.html", "--rl-save-baseline=base.json"])
def test_a_report_needs_the_switch(run_pytest: RunPytest, flag: str) -> None:
    outcome = run_pytest("def test_it(): pass", flag, on=False)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert f"{flag.partition('=')[0]} reports on checked tests: it needs --rl-stability" in outcome.text


def test_the_ini_setting_is_the_switch_too(run_pytest: RunPytest) -> None:
    assert run_pytest("def test_it(): pass", "--rl-jsonl=run.jsonl", "-o", "rl_stability=true", on=False).code == 0


@pytest.mark.parametrize("on", [True, False])
def test_an_unknown_marker_of_ours(run_pytest: RunPytest, on: bool) -> None:
    source = "import pytest\n\n@pytest.mark.rl_no_leaks(limit=3)\ndef test_it(): pass\n"
    outcome = run_pytest(source, on=on)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    expected = "test_it.py:3: test_it: unknown marker rl_no_leaks; did you mean rl_no_leak?"
    assert expected in outcome.text


def test_a_marker_that_the_suite_has_registered_is_its_own(run_pytest: RunPytest) -> None:
    run_pytest.write("pytest.ini", "[pytest]\nmarkers =\n    rl_nightly(hours): only at night\n")
    source = "import pytest\n\n@pytest.mark.rl_nightly(3)\ndef test_it(): pass\n"
    assert run_pytest(source).tests == {"test_it": "passed"}


def test_the_command_says_its_version_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ("--version", *COMMANDS):
        words = [arguments] if arguments.startswith("-") else [arguments, "--help"]
        with pytest.raises(SystemExit, match="0"):
            main(words)
        text = capsys.readouterr().out
        assert f"\n  rlstability {arguments} " in text if words[1:] else text.startswith("rlstability 0."), text
