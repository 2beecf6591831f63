"""One piece of code in a fresh interpreter, bounded in time: how did it end?

``runner`` starts the interpreter and reads how it ended; ``worker`` is what that interpreter runs.
"""

from __future__ import annotations

from pytest_rlstability.steps.runner import (
    Ending,
    Outcome,
    StageRecord,
    Step,
    read_stages,
    run_step,
    run_steps,
    signal_name,
)

__all__ = ["Ending", "Outcome", "StageRecord", "Step", "read_stages", "run_step", "run_steps", "signal_name"]
