"""``rl_fuzz``: drives an env with generated calls inside a test, and fails it with the shortest that break the env."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_rlstability.model.units import counted, parse_duration

if TYPE_CHECKING:
    from pytest_rlstability.kits.fuzz.calls import Case
    from pytest_rlstability.kits.fuzz.laboratory import Laboratory


class FuzzEnv(Protocol):
    """``rl_fuzz(make_env, duration="30s")``"""

    def __call__(
        self, make_env: Callable[[], Any], *, duration: str | float = "10s", seed: int | None = None,
        invalid: bool = False, stall_after: str | float = "10s", shrink_for: str | float = "30s",
        options: Sequence[dict[str, Any] | None] = (None, {}),
    ) -> str: ...  # fmt: skip


@pytest.fixture
def rl_fuzz() -> FuzzEnv:
    """Fuzz an env: ``rl_fuzz(make_env)`` drives it for *duration*, and fails the test with the first fault it finds.

    The failure says what broke and has the source of the shortest test that shows it. The attempts run in forked
    processes, so a crash or a hang of the env is not one of this test. Each reset gets one of *options*. Returns a line
    about what was done.
    """
    if not hasattr(os, "fork"):
        pytest.skip("rl_fuzz forks processes, which this system cannot")
    for library in ("numpy", "gymnasium"):
        pytest.importorskip(library, reason=f"rl_fuzz needs it: pip install {library}")
    return _fuzz


def _fuzz(
    make_env: Callable[[], Any], *, duration: str | float = "10s", seed: int | None = None, invalid: bool = False,
    stall_after: str | float = "10s", shrink_for: str | float = "30s",
    options: Sequence[dict[str, Any] | None] = (None, {}),
) -> str:  # fmt: skip
    from pytest_rlstability.child.progress import heartbeat
    from pytest_rlstability.kits.fuzz.calls import Settings
    from pytest_rlstability.kits.fuzz.laboratory import Laboratory
    from pytest_rlstability.kits.fuzz.search import Search

    settings = Settings(
        parse_duration(duration), random.getrandbits(31) if seed is None else seed, invalid,
        parse_duration(stall_after), parse_duration(shrink_for), tuple(options),
    )  # fmt: skip
    with closing(Laboratory(make_env, settings)) as laboratory:
        search = Search(laboratory, lambda line: heartbeat(), _target(make_env))
        case = next(search.cases(), None)
        if case is not None:
            _fail(case, make_env, laboratory)
        return search.tally.line()


def _target(make_env: Callable[[], Any]) -> str:
    """How a fresh interpreter imports it; empty for a function inside another, or one without a name."""
    name = getattr(make_env, "__qualname__", "<none>")
    return "" if "<" in name else f"{make_env.__module__}:{name}"


def _fail(case: Case, make_env: Callable[[], Any], laboratory: Laboratory) -> None:
    from pytest_rlstability.kits.fuzz.written_test import Target, source_of_test
    from pytest_rlstability.model.verdict import Verdict, VerdictFailure, Word

    name = getattr(make_env, "__name__", "make_env").replace("<lambda>", "make_env")
    target = Target(
        make_env.__module__, name, f"rl_fuzz({name}, seed={laboratory.settings.seed})", adapter=laboratory.probe.adapter
    )
    source = source_of_test(case, target, laboratory.settings.stall_after)
    finding = case.finding
    sections = (
        ("", f"after {counted(len(case.calls), 'call')}, seed {laboratory.settings.seed}"),
        *((("evidence", finding.stack),) if finding.stack else ()),
        ("the shortest test that was found", source),
    )
    if finding.kind in Word.__members__:
        raise VerdictFailure(Verdict(Word(finding.kind), finding.text, sections, {"class": "fuzz"}))
    text = "\n\n".join(f"{title}\n{text}".strip() for title, text in sections)
    pytest.fail(f"{finding.kind}: {finding.text}\n{text}", pytrace=False)
