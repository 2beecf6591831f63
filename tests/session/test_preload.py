"""What marked tests import inside themselves is imported once, before they are forked, in the next run."""

from __future__ import annotations

import pytest

LIBRARY = """
import os
with open(os.environ["IMPORTED"], "a") as file:
    file.write(f"{__name__}\\n")
"""
TESTS = """
    import pytest

    @pytest.mark.rl_isolated
    @pytest.mark.parametrize("number", range(4))
    def test_marked(number):
        import quiet_library, threaded_library, own_module

    @pytest.mark.rl_isolated
    @pytest.mark.parametrize("number", range(4))
    def test_quiet(number):
        import quiet_library, own_module
"""


@pytest.fixture
def libraries(run_pytest, monkeypatch):
    """Two libraries in a site-packages directory, and a module of the project. Each import is noted in a file."""
    site = run_pytest.path / "site-packages"
    notes = run_pytest.path / "imported"
    run_pytest.write("site-packages/quiet_library.py", LIBRARY)
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    run_pytest.write("site-packages/threaded_library.py", LIBRARY + thread)
    run_pytest.write("own_module.py", LIBRARY)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{run_pytest.path}")
    monkeypatch.setenv("IMPORTED", str(notes))

    def imported() -> list[str]:
        names = notes.read_text().split() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return sorted(names)

    return imported


def test_imports_are_learnt_and_made_beforehand(run_pytest, libraries):
    first = run_pytest(TESTS)
    assert set(first.tests.values()) == {"passed"}, first.text
    assert libraries() == ["own_module"] * 8 + ["quiet_library"] * 8 + ["threaded_library"] * 4
    second = run_pytest.run()
    assert set(second.tests.values()) == {"passed"}, second.text
    assert libraries() == ["own_module"] * 8 + ["quiet_library"] + ["threaded_library"] * 4


def test_a_library_that_starts_threads_or_dies_is_not_preloaded(run_pytest, libraries):
    run_pytest.write("site-packages/deadly_library.py", "import os\nos.abort()\n")
    for name in ("threaded_library", "deadly_library", "missing_library"):
        outcome = run_pytest(TESTS, "-o", f"rl_preload={name}", "-p", "no:cacheprovider")
        assert set(outcome.tests.values()) == {"passed"}, outcome.text
        assert "(zygote)" in outcome.text
