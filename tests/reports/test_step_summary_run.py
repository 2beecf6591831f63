"""$GITHUB_STEP_SUMMARY in a real run."""

from __future__ import annotations

from typing import Any

import pytest

TESTS = """
    import os
    import pytest

    @pytest.mark.parametrize("name", ["a|b"])
    def test_crash(name):
        os.abort()

    def test_fine():
        pass
"""


@pytest.mark.slow
def test_a_run_adds_its_failures_only_when_it_is_on(run_pytest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_pytest.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    run_pytest(TESTS, "--rl-seed=7", "-n1")
    text = path.read_text()
    assert "2 tests: 1 failed, 1 passed (1 CRASH)" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| **CRASH**")]
    assert row.count("|") == 6, "five cells, whatever the test is called"
    for part in ("a&#124;b", "`SIGABRT in call`", "`SIGABRT call ", "test_crash ", "seed&#61;7"):
        assert part in row
    path.unlink()
    run_pytest("def test_fine(): pass", on=False)
    assert not path.exists()
