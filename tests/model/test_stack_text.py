"""How stacks and statements are shown."""

from __future__ import annotations

from pathlib import Path

from pytest_rlstability.model import statements
from pytest_rlstability.model.stack_dump import Frame, render_frames

TORCH = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"


def test_a_stack_reads_like_a_traceback(tmp_path: Path) -> None:
    env = tmp_path / "env.py"
    env.write_text("def step(self):\n    return self.model(\n        self.state,\n    )\n")
    frames = [
        Frame(TORCH, 3, "linear"),
        Frame(TORCH, 2, "forward"),
        Frame(TORCH, 1, "__call__"),
        Frame(statements.__file__, 1, "ours"),
        Frame(str(env), 3, "step"),
        Frame("/usr/lib/python3.12/threading.py", 1, "run"),
    ]
    assert render_frames("thread MainThread", frames).splitlines() == [
        "thread MainThread",
        "  ... 1 frame in threading",
        f'  File "{env}", line 3, in step',
        "    return self.model(self.state,)",
        "  ... 2 frames in torch",
        f'  File "{TORCH}", line 3, in linear',
    ]


def test_the_source_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text("for lap in (\n    1, 2,\n):\n    kept.append(\n        lap)\n")
    assert statements.statement_at(str(file), 4) == statements.statement_at(str(file), 5) == "kept.append(lap)"
    assert statements.statement_at(str(file), 1) == "for lap in ("
    assert statements.statement_at(str(tmp_path / "gone.py"), 1) == ""
    broken = tmp_path / "broken.py"
    broken.write_text("def (:\n")
    assert statements.statement_at(str(broken), 1) == "def (:"
