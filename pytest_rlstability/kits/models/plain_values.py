"""Runs inside a Python without torch: loads the values in an SB3 zip's ``data`` entry and calls its schedules.

It stands alone (standard library and cloudpickle only), because the interpreter that runs it has nothing of ours.
Loading proves nothing about a function, so every schedule that SB3 would call is called.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from typing import Any


class _FloatSchedule:
    """What stable_baselines3.common.utils.FloatSchedule does, for a Python that has no SB3."""

    value_schedule: Any

    def __call__(self, progress: float) -> float:
        return float(self.value_schedule(progress))


class _ConstantSchedule:
    val: float

    def __call__(self, progress: float) -> float:
        return self.val


class _LinearSchedule:
    start: float
    end: float
    end_fraction: float

    def __call__(self, progress: float) -> float:
        if 1 - progress > self.end_fraction:
            return self.end
        return self.start + (1 - progress) * (self.end - self.start) / self.end_fraction


_STAND_INS = {
    "FloatSchedule": _FloatSchedule,
    "ConstantSchedule": _ConstantSchedule,
    "LinearSchedule": _LinearSchedule,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except ImportError:
            if module == "stable_baselines3.common.utils" and name in _STAND_INS:
                return _STAND_INS[name]
            raise


def load_values(path: str, progress: list[float], schedules: list[str]) -> dict[str, Any]:
    """Load every pickled value in *path*, call those named in *schedules* at each *progress*.

    Gives ``{"values": {attribute: [...]}, "errors": {attribute: text}, "skipped": {attribute: missing module}}``.
    What is under way is printed first, so that a crash is known by the last line.
    """
    import cloudpickle  # noqa: F401  (its makers are what the pickles call)

    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    values: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for attribute, entry in data.items():
        if not isinstance(entry, dict) or ":serialized:" not in entry:
            continue
        try:
            print("loading", attribute, flush=True)
            value = _Unpickler(io.BytesIO(base64.b64decode(entry[":serialized:"]))).load()
            if attribute in schedules and callable(value):
                print("calling", attribute, flush=True)
                values[attribute] = [float(value(point)) for point in progress]
        except ModuleNotFoundError as error:
            skipped[attribute] = error.name or str(error)
        except Exception as error:
            errors[attribute] = f"{type(error).__name__}: {error}"
    return {"values": values, "errors": errors, "skipped": skipped}
