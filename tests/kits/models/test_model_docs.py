"""docs/models.md: the command it shows prints what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_audit_prints_what_the_docs_show() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    command, shown = re.findall(r"```\n(.*?)```", text, re.DOTALL)[:2]
    words = command.split()
    assert words[0] == "rlstability"
    result = subprocess.run(
        [sys.executable, "-m", "pytest_rlstability", *words[1:]], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 1
    printed = result.stdout.splitlines()
    for line in shown.splitlines():
        assert any(one.startswith(line.removesuffix(" ...")) for one in printed), line
