"""A verdict as it travels between processes and into the log."""

from __future__ import annotations

import json

import pytest

from pytest_rlstability.model.verdict import CrashClass, Location, Verdict, Word

CRASH = Verdict(
    Word.CRASH,
    "SIGSEGV in call",
    sections=(("", "at env.py"), ("Python stacks", "a\nb")),
    facts={"class": CrashClass.SIGNAL, "laps": 3, "per_lap": 1.5},
    location=Location("/game/env.py", 40, "step"),
)


def test_nothing_is_lost_on_the_way():
    assert Verdict.from_dict(json.loads(json.dumps(CRASH.to_dict()))) == CRASH
    assert Verdict.from_dict(Verdict(Word.LEAK, "threads grow").to_dict()) == Verdict(Word.LEAK, "threads grow")


def test_execnet_takes_it():
    """It knows the exact types of JSON and nothing derived from them."""
    execnet = pytest.importorskip("execnet")
    assert execnet.loads(execnet.dumps(CRASH.to_dict())) == CRASH.to_dict()


def test_a_log_written_before_there_were_locations_is_read():
    old = {"word": "STALL", "headline": "deadlock", "sections": [["", "x"]], "facts": {}}
    assert Verdict.from_dict(old) == Verdict(Word.STALL, "deadlock", (("", "x"),))
