"""Which schedules survive which pair of Pythons: written by one, audited, loaded and called ten times by each.

    python benchmarks/model_pairs.py [--repeat 10] [3.10 3.11 3.12 3.13]

Prints the tables of docs/models.md: what happened, and where the audit's forecast was wrong.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
from pathlib import Path

from pytest_rlstability.kits.models import worker
from pytest_rlstability.kits.models.audit import audit, spoken
from pytest_rlstability.kits.models.targets import Target, find_python, lend
from pytest_rlstability.steps import Outcome, Step, run_step, run_steps

# Run as __main__ of each writer, as a training script would be; `schedules` maps a name to what it is.
SCHEDULES = """
def constant(value):
    def func(_):
        return value
    return func

def linear(initial):
    def func(progress):
        return progress * initial
    return func

def clipped(initial, minimum):
    def func(progress):
        return max(minimum, progress * initial)
    return func

def stepped(high, low):
    def func(progress):
        if progress > 0.5:
            return high
        return low
    return func

def blended(start, end, fraction):
    def func(progress):
        if (1 - progress) > fraction:
            return end
        return start + (1 - progress) * (end - start) / fraction
    return func

def wrapped(value):
    inner = constant(value)
    return lambda progress: float(inner(progress))

class Cosine:
    def __init__(self, initial):
        self.initial = initial
    def __call__(self, progress):
        import math
        return self.initial * 0.5 * (1 + math.cos(math.pi * (1 - progress)))

schedules = {
    "constant closure": constant(3e-4),
    "linear closure": linear(3e-4),
    "closure with max()": clipped(1e-5, 1e-6),
    "closure with if": stepped(1e-3, 1e-4),
    "linear to an end": blended(1.0, 0.05, 0.1),
    "lambda around a closure": wrapped(0.2),
    "lambda": lambda progress: progress * 2.5e-4,
    "callable class": Cosine(3e-4),
}
"""

WRITE = (
    SCHEDULES
    + """
import base64, cloudpickle, json, sys, zipfile
sys.modules["__main__"].__dict__.update(globals())
for value in list(globals().values()):
    if getattr(value, "__module__", None) == "__step__":
        value.__module__ = "__main__"
for schedule in schedules.values():
    if hasattr(schedule, "__code__"):
        schedule.__module__ = "__main__"
for index, schedule in enumerate(schedules.values()):
    text = base64.b64encode(cloudpickle.dumps(schedule)).decode()
    with zipfile.ZipFile(arguments["paths"][index], "w") as archive:
        archive.writestr("data", json.dumps({"learning_rate": {":type:": "", ":serialized:": text}}))
        archive.writestr("system_info.txt", "- Python: " + sys.version.split()[0] + "\\n")
result = {name: [float(schedule(point)) for point in arguments["progress"]] for name, schedule in schedules.items()}
"""
)


def write(interpreter: Target, directory: Path, lent: tuple[str, ...], names: list[str]) -> dict[str, list[float]]:
    """Let *interpreter* save every schedule, and give the values it computes itself."""
    paths = [str(directory / f"{spoken(interpreter.minor)}-{index}.zip") for index in range(len(names))]
    outcome = run_step(
        Step(
            f"write on {interpreter.name}",
            code=WRITE,
            arguments={"paths": paths, "progress": worker.PROGRESS},
            python=interpreter.python,
            search_path=lent,
        )
    )
    if outcome.ending != "ok":
        sys.exit(f"{interpreter.name} could not write: {outcome.headline()}\n{outcome.stack}")
    values: dict[str, list[float]] = outcome.result
    return values


def word(outcome: Outcome, expected: list[float]) -> str:
    """How one attempt ended: right, wrong, the exception's name, or the signal's."""
    if outcome.ending != "ok":
        return outcome.headline().partition(":")[0]
    errors = outcome.result["errors"]
    if errors:
        return str(errors["learning_rate"]).partition(":")[0]
    return "right" if outcome.result["values"]["learning_rate"] == expected else "WRONG VALUE"


def attempt(path: Path, reader: Target, lent: tuple[str, ...], repeat: int) -> list[Outcome]:
    step = Step(
        path.name,
        call=f"{worker.__file__}:load_values",
        arguments={"path": str(path)},
        python=reader.python,
        search_path=lent,
        timeout=20.0,
    )
    return run_steps([step] * repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=["3.10", "3.11", "3.12", "3.13"])
    parser.add_argument("--repeat", type=int, default=10)
    arguments = parser.parse_args()
    interpreters = [find_python(wanted) for wanted in arguments.pythons]
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        lent = lend(directory / "lent")
        if not (directory / "lent").exists():
            sys.exit("cloudpickle is needed here to lend it to the others")
        namespace: dict[str, object] = {"__name__": "schedules"}
        exec(SCHEDULES, namespace)
        names = list(namespace["schedules"])  # type: ignore[call-overload]
        wrong_forecasts = []
        for writer in interpreters:
            expected = write(writer, directory, lent, names)
            print(f"\n| written by {writer.name} | " + " | ".join(reader.name for reader in interpreters) + " |")
            print("| --- |" + " --- |" * len(interpreters))
            for index, name in enumerate(names):
                path = directory / f"{spoken(writer.minor)}-{index}.zip"
                forecast = audit(path, [reader.minor for reader in interpreters]).findings[0].effects
                cells = []
                for reader in interpreters:
                    outcomes = attempt(path, reader, lent, arguments.repeat)
                    seen = collections.Counter(word(outcome, expected[name]) for outcome in outcomes)
                    effect = forecast[spoken(reader.minor)]
                    cells.append(f"{effect}: " + ", ".join(f"{count} {what}" for what, count in seen.most_common()))
                    if (effect in ("fine", "foreign")) != (set(seen) == {"right"}):
                        wrong_forecasts.append(f"{name}, {writer.name} -> {reader.name}: {cells[-1]}")
                print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nforecasts that what was seen does not bear out: {len(wrong_forecasts)}")
    for line in wrong_forecasts:
        print("-", line)


if __name__ == "__main__":
    main()
