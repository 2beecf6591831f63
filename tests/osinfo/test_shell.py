"""What the user has to type for this interpreter."""

from __future__ import annotations

import os
import sys

from pytest_rlstability.osinfo.shell import own_python


def test_python_is_named_by_its_path_where_the_word_finds_another(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert own_python.__wrapped__() == "python"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_python.__wrapped__() == sys.executable
    other = tmp_path / "python"
    other.write_text("")
    other.chmod(0o755)
    assert own_python.__wrapped__() == sys.executable
