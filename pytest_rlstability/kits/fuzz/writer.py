"""Writes the test: the calls as plain Python, and a check that fails as the finding did."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_rlstability.kits.fuzz import adapters
from pytest_rlstability.kits.fuzz.calls import Call, Kind, Op
from pytest_rlstability.kits.fuzz.laboratory import Case
from pytest_rlstability.kits.fuzz.literals import literal
from pytest_rlstability.kits.fuzz.templates import TEMPLATES, repeated_test
from pytest_rlstability.model.units import counted, escaped

_WIDTH = 112
_LONGEST_JOURNAL = 1500
_NAMES = ("env", "other")


@dataclass(frozen=True)
class Target:
    """How a test reaches the env: ``from MODULE import NAME``, from *directory* if it is not installed. *command* found
    the case, *adapter* is the kind of env."""

    module: str
    name: str
    command: str
    directory: str = ""
    adapter: str = ""


def source_of_test(case: Case, target: Target, stall_after: float) -> str:
    """A file with one test. It needs pytest, numpy and the env's own module."""
    if case.finding.kind in TEMPLATES:
        code = repeated_test(case, target.name, lambda call: _line(call, target, False))
        play = f"{_play_source(target.adapter)}\n\n" if "play(" in code else ""
        return f"{_heading(case, target)}{_imports(play + code, target)}\n\n{play}{code}{_journal(case)}"
    body = "\n".join(f"    {line}" if line else "" for line in _body(case, target))
    code = f"{_markers(case, stall_after)}def test_{case.finding.kind.lower()}():\n{body}\n"
    play = f"{_play_source(target.adapter)}\n\n" if "play(" in body else ""
    return f"{_heading(case, target)}{_imports(play + code, target)}\n\n{play}{code}{_journal(case)}"


def _heading(case: Case, target: Target) -> str:
    finding = case.finding
    text = textwrap.wrap(escaped(f"{finding.kind}: {finding.text}"), _WIDTH)
    text += [
        "",
        f"Found by: {target.command}",
        f"Calls: {len(case.calls)}, shrunk from {counted(len(case.journal), 'call')}",
    ]
    if case.seen < case.tries:
        text.append(f"It does not come every time: {case.seen} of {case.tries} replays showed it.")
    quoted = "\n".join(text).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{quoted}\n"""\n\n'


def _imports(code: str, target: Target) -> str:
    plain = [
        name
        for name in ("copy", "gc", "math", "os", "pickle", "subprocess", "sys", "threading", "time")
        if f"{name}." in code
    ]
    if target.directory and "sys" not in plain:
        plain.append("sys")
    lines = [f"import {name}" for name in plain]
    lines += ["from contextlib import suppress"] * ("suppress(" in code)
    lines += [""] * bool(lines)
    lines += ["import numpy as np"] * ("np." in code)
    lines += ["import psutil"] * ("psutil." in code)
    lines += ["import pytest"]
    lines += ["from gymnasium.spaces import GraphInstance"] * ("GraphInstance(" in code)
    if target.directory:
        lines += ["", f"sys.path.insert(0, {target.directory!r})"]
    noqa = "  # noqa: E402" if target.directory else ""
    return "\n".join([*lines, "", f"from {target.module} import {target.name}{noqa}"]) + "\n"


def _markers(case: Case, stall_after: float) -> str:
    """Under ``--rl-stability`` a stall is judged first; the timeout is for plain pytest."""
    if case.finding.kind is not Kind.STALL:
        return "@pytest.mark.rl_isolated\n"
    seconds = math.ceil(stall_after)
    return f'@pytest.mark.rl_no_stall(after="{seconds}s")\n@pytest.mark.timeout({2 * seconds + 10})\n'


def _play_source(adapter: str) -> str:
    source: str = getattr(adapters, adapter).play_source()
    return source


def _body(case: Case, target: Target) -> Iterator[str]:
    """The lines of the test."""
    calls, last = case.calls, len(case.calls) - 1
    lines = [_line(call, target, number in case.played.raised) for number, call in enumerate(calls)]
    kind, detail = case.finding.kind, case.finding.detail
    if kind is Kind.ALIAS:
        env = calls[last].env
        earlier = max(
            number for number, call in enumerate(calls[:last]) if call.env == env and call.op in (Op.RESET, Op.STEP)
        )
        yield from _folded(lines[:earlier])
        yield _assigned("observation", calls[earlier], lines[earlier])
        yield "kept = copy.deepcopy(observation)"
        yield from lines[earlier + 1 :]
        yield "np.testing.assert_equal(observation, kept)"
    elif kind in (Kind.SPACE, Kind.NAN):
        yield from _folded(lines[:last])
        yield _assigned("reward" if detail == "reward" else "observation", calls[last], lines[last])
        yield from _check(kind, detail, calls[last])
    else:
        yield from _folded(lines)


def _check(kind: Kind, detail: str, call: Call) -> Iterator[str]:
    if detail == "reward":
        yield 'assert np.isfinite(np.asarray(reward, dtype=float)).all(), f"the reward is {reward}"'
    elif kind is Kind.NAN:
        yield 'assert "nan" not in repr(np.asarray(observation).tolist()), "the observation has a NaN"'
    else:
        space = f"{_NAMES[call.env]}.observation_space"
        yield f'assert {space}.contains(observation), f"{{observation}} is not in {{{space}}}"'


def _assigned(name: str, call: Call, line: str) -> str:
    if call.op is Op.STEP and name == "reward":
        return f"_, reward, *_ = {line}"
    return f"{name}, *_ = {line}"


def _line(call: Call, target: Target, raises: bool) -> str:
    """The source of one call."""
    env = _NAMES[call.env]
    match call.op:
        case Op.MAKE:
            return f"{env} = {target.name}()"
        case Op.RESET:
            given = zip(("seed", "options"), call.value, strict=True)
            line = f"{env}.reset({', '.join(f'{name}={literal(one)}' for name, one in given if one is not None)})"
        case Op.STEP:
            action = literal(call.value)
            line = f"play({env}, {action})" if target.adapter else f"{env}.step({action})"
        case Op.PICKLE:
            line = f"{env} = pickle.loads(pickle.dumps({env}))"
        case Op.COPY:
            line = f"{env} = copy.deepcopy({env})"
        case _:
            line = f"{env}.{call.op.name.lower()}()"
    return f"with suppress(Exception):\n        {line}" if raises else line


def _folded(lines: Sequence[str]) -> Iterator[str]:
    """Equal lines that follow each other become a loop."""
    for line, group in groupby(lines):
        count = len(list(group))
        if count > 2:
            yield f"for _ in range({count}):"
            yield "    " + line.replace("\n", "\n    ")
        else:
            yield from [line] * count


def _journal(case: Case) -> str:
    """What the attempt did before it was shrunk, as a comment."""
    names = [_short(call) for call in case.journal]
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    text = " ".join(name if count == 1 else f"{name}*{count}" for name, count in runs)
    if len(text) > _LONGEST_JOURNAL:
        text = f"{text[: _LONGEST_JOURNAL // 2]} ... {text[-_LONGEST_JOURNAL // 2 :]}"
    lines = textwrap.wrap(escaped(text), _WIDTH, break_on_hyphens=False)
    return "\n\n# Journal of the attempt, which is drawn from " + "\n# ".join([f"seed {case.seed}:", *lines]) + "\n"


def _short(call: Call) -> str:
    shown = call.op is Op.STEP or (call.op is Op.RESET and call.value != (None, None))
    value = literal(call.value).replace(" ", "") if shown else ""
    return f"{call.op.name.lower()}{call.env or ''}({value if len(value) < 40 else '...'})"
