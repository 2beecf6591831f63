"""The exceptions for an emulator process that died or does not answer, each with its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rlstability.model.verdict import Verdict, VerdictFailure, Word
from pytest_rlstability.osinfo.fatal_signals import signal_of_exit


@dataclass(frozen=True)
class LastSeen:
    """What was known of an emulator when it died or hung."""

    pid: int
    frame: int
    doing: str
    inputs: Sequence[str]
    stack: str
    output: str

    def verdict(self, word: Word, headline: str, **facts: str) -> Verdict:
        sections = (
            ("", f"emulator process {self.pid}, frame {self.frame}, in {self.doing}"),
            ("last inputs", "\n".join(self.inputs) or "none"),
            ("Python stack of the emulator process", self.stack or "none was written"),
            ("output of the emulator process", self.output or "none"),
        )
        return Verdict(word, headline, sections, {**facts, "class": "emulator", "frame": self.frame})


class EmulatorDiedError(VerdictFailure, RuntimeError):
    """The base of ``EmulatorCrashed`` and ``EmulatorStalled``. The test fails with the verdict even if the exception is
    swallowed. A test that expects the death says so with ``pytest.raises(EmulatorCrashed)``, or in an ``except`` clause
    with ``error.expected = True``."""

    def __init__(self, verdict: Verdict, seen: LastSeen) -> None:
        super().__init__(verdict)
        self.seen = seen
        self.expected = False

    @property
    def frame(self) -> int:
        return self.seen.frame


class EmulatorCrashed(EmulatorDiedError):  # noqa: N818 (a public name, fixed)
    """The process of a ``forked_pyboy`` was killed by a signal, or exited. ``frame`` says when, ``signal`` why
    (``"SIGSEGV"``, or ``None`` when it exited), and ``seen.inputs`` are the last inputs."""

    def __init__(self, seen: LastSeen, returncode: int | None) -> None:
        self.returncode = returncode
        self.signal = signal_of_exit(returncode) or None
        how = self.signal or f"exit code {returncode}"
        headline = f"PyBoy's process died of {how} in {seen.doing} at frame {seen.frame}"
        super().__init__(seen.verdict(Word.CRASH, headline, signal=how), seen)


class EmulatorStalled(EmulatorDiedError):  # noqa: N818 (a public name, fixed)
    """A call to a ``forked_pyboy`` did not return, and no frame passed, within the limit that
    ``forked_pyboy(stall_after="5s")`` sets. The process has been killed."""

    def __init__(self, seen: LastSeen, limit: str) -> None:
        headline = f"PyBoy did not return from {seen.doing} and no frame passed for {limit}, at frame {seen.frame}"
        super().__init__(seen.verdict(Word.STALL, headline), seen)
