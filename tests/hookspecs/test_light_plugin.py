"""A pytest run with the switch off imports next to nothing of this package."""

from __future__ import annotations

from conftest import RunPytest

HEAVY = ("model.messages", "model.events", "session.engine", "leaks.check", "reports.html")


def test_heavy_modules_are_imported_when_they_are_needed(run_pytest: RunPytest) -> None:
    run_pytest.write(
        "conftest.py",
        f"""
        import sys

        HEAVY = {[f"pytest_rlstability.{name}" for name in HEAVY]}

        def pytest_terminal_summary(terminalreporter):
            terminalreporter.write_line(f"imported: {{[name for name in HEAVY if name in sys.modules]}}")
        """,
    )
    source = "def test_it(rl_heartbeat): rl_heartbeat()"
    assert "imported: []" in run_pytest(source, on=False).text
    assert "imported: []" not in run_pytest(source).text
