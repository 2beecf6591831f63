"""The five field stories, live: every faulty version is caught, every fixed one passes.

    python examples/demo.py                 # all of them, in a minute or two
    python examples/demo.py box2d_walker    # one

Exits 0 when each fault was caught for the reason given here, and 1 otherwise.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.model.verdict import Word

EXAMPLES = Path(__file__).resolve().parent
PAGE = Path("rlstability-demo.html")
WORDS = tuple(f"{word}:" for word in Word)
_PLACE = re.compile(r"\.py:\d+")


@dataclass(frozen=True)
class Story:
    """A folder of examples: what happened, and the words by which each of its faults must be caught."""

    folder: str
    what: str
    faults: dict[str, str]


STORIES = (
    Story(
        "pyboy_capture",
        "A game is trained on PyBoy, and a screen-capture thread reads the emulator while it ticks.",
        {
            "test_filming": "PyBoy is used",
            "test_closing_while_filming": "PyBoy is stopped while another thread may still use it",
            "test_saving_a_frame": "cannot write mode RGBA as JPEG: PyBoy's screen has an alpha channel",
            "test_frame_stack": "observations of 3 different frames share the same memory",
            "test_last_frame_outlives_the_game": "view(s) of the screen outlived stop()",
            "test_a_broken_state_is_loaded": "STALL: PyBoy did not return from tick(1, True, True)",
        },
    ),
    Story(
        "model_roundtrip",
        "A model saved on one machine segfaults when another loads it.",
        {
            "test_saved_agent_is_portable": 'custom_objects={"learning_rate": linear_schedule(initial=0.0003',
            "test_saved_agent_runs_on_the_other_python": "CRASH: saved model on Python",
        },
    ),
    Story(
        "http_env",
        "A game server behind HTTP: connection reset by peer, and a lock shared by the game loop and the handlers.",
        {
            "test_a_reset_in_the_middle_of_an_image": "Connection reset by peer",
            "test_every_step_is_applied_once": "the client made 20 steps, the server applied 26",
            "test_a_server_that_falls_silent": "STALL: blocked",
            "test_one_stalled_client_does_not_stop_the_game": "the game loop stands still",
        },
    ),
    Story(
        "model_creation_stages",
        "Creating a policy kills the process: exit 139, and no word of where.",
        {"test_model_creation": "CRASH: SIGSEGV in call, stage 'create model'"},
    ),
    Story(
        "box2d_walker",
        "A walker's world grows for hours: food, bodies, and one that is used after it was destroyed.",
        {
            "test_episodes": "LEAK: box2d: food grew by 3 per lap",
            "test_reward_of_eaten_food": "reading .position of a destroyed dynamic body",
            "test_eating_on_contact": "DestroyBody inside world.Step",
        },
    ),
)


@dataclass(frozen=True)
class Result:
    """What JUnit says of one test."""

    name: str
    faulty: bool
    outcome: str
    text: str

    @property
    def headline(self) -> str:
        """The failure in a line or two: what happened, and where."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        if not lines or _PLACE.search(lines[0]) or not lines[0].startswith(WORDS):
            return "\n".join(lines[:1])
        return "\n".join([lines[0], *[line for line in lines if _PLACE.search(line)][:1]])


def run(story: Story, directory: Path) -> list[Result]:
    """Run a story's tests in a real pytest, and read its reports."""
    junit, events = directory / f"{story.folder}.xml", directory / f"{story.folder}.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rl-stability"]
    command += [f"--junit-xml={junit}", f"--rl-jsonl={events}", str(EXAMPLES / story.folder)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=EXAMPLES / story.folder, env=environment, capture_output=True, text=True)
    if not junit.exists():
        sys.exit(ran.stdout + ran.stderr)
    return [result_of(case) for case in ElementTree.parse(junit).getroot().iter("testcase")]


def result_of(case: ElementTree.Element) -> Result:
    trouble = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
    outcome = "passed" if trouble is None else trouble.tag
    message = "" if trouble is None else f"{trouble.get('message', '')}\n{trouble.text or ''}"
    return Result(case.get("name", ""), "faulty" in case.get("classname", ""), outcome, message)


def tell(story: Story, results: list[Result]) -> bool:
    """Print a story's outcome; whether it is the one promised."""
    good = True
    print(f"\n{story.folder}\n  {story.what}")
    for result in (result for result in results if result.faulty):
        expected = story.faults.get(result.name, "(a test this script does not know)")
        caught = result.outcome in ("failure", "error") and expected in result.text
        good &= caught or result.outcome == "skipped"
        word = "caught" if caught else "skipped" if result.outcome == "skipped" else "NOT CAUGHT"
        print(f"  {word:<8} {result.name}")
        for line in result.headline.splitlines():
            print(textwrap.fill(line[:400], 118, initial_indent=" " * 11, subsequent_indent=" " * 11))
    missing = story.faults.keys() - {result.name for result in results}
    fixed = [result for result in results if not result.faulty]
    broken = [result.name for result in fixed if result.outcome not in ("passed", "skipped")]
    passing = sum(result.outcome == "passed" for result in fixed)
    trouble = f"; these do not: {', '.join(broken)}" if broken else ""
    print(f"  fixed    {passing} {'test passes' if passing == 1 else 'tests pass'}{trouble}")
    if missing:
        print(f"  did not run: {', '.join(sorted(missing))}")
    return good and not missing and not broken and passing > 0


def write_page(directory: Path) -> None:
    """The same as a page with charts, if what draws them is installed."""
    logs = sorted(map(str, directory.glob("*.jsonl")))
    command = [sys.executable, "-m", "pytest_rlstability", "report", *logs, "-o", str(PAGE)]
    if subprocess.run(command, capture_output=True).returncode == 0:
        print(f"\nAll of it on a page, with charts: {PAGE.resolve()}")


def main(names: list[str]) -> int:
    if unknown := set(names) - {story.folder for story in STORIES}:
        sys.exit(f"no such story: {', '.join(sorted(unknown))}")
    began, good = time.monotonic(), True
    with tempfile.TemporaryDirectory() as directory:
        for story in STORIES:
            if not names or story.folder in names:
                good &= tell(story, run(story, Path(directory)))
                sys.stdout.flush()
        write_page(Path(directory))
    print(f"\n{'Every fault was caught' if good else 'NOT as promised'}, in {time.monotonic() - began:.0f} s.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
