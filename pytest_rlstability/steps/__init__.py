"""Runs a piece of code in a fresh interpreter, within a time limit, and reads how it ended.

``runner`` starts the interpreter; ``worker`` is what that interpreter runs.
"""

from __future__ import annotations

from pytest_rlstability.steps.runner import Outcome, StageRecord, Step, read_stages, run_step, run_steps

__all__ = ["Outcome", "StageRecord", "Step", "read_stages", "run_step", "run_steps"]
