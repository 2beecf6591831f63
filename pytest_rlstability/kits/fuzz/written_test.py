"""Writes the test: the calls as plain Python, and a check that fails as the finding did."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from pytest_rlstability.kits.fuzz import adapters
from pytest_rlstability.kits.fuzz.calls import Call, Case, Growth, Kind, Op
from pytest_rlstability.kits.fuzz.differences import alone, last_start
from pytest_rlstability.model.units import counted, escaped

_WIDTH = 112
_LONGEST_JOURNAL = 1500
_NAMES = ("env", "other")

_LEAK = """def used():
    gc.collect()
    return {read}


@pytest.mark.rl_isolated
def test_leak():
{start}
    def lap():
{lap}

    for _ in range({laps}):
        lap()
    before = used()
    for _ in range({laps}):
        lap()
    per_lap = (used() - before) / {laps}
    assert per_lap < {limit:.4g}, f"LEAK: {signal} grow by {{per_lap:.4g}} a lap"
"""

_LEFTOVER = """def lap():
{lap}


def resources():
    process = psutil.Process()
    processes, files = process.children(recursive=True), os.listdir({files})
    return process.num_fds() + threading.active_count() + len(processes) + len(files)


@pytest.mark.rl_isolated
def test_leftover(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lap()
    before = resources()
    for _ in range(3):
        lap()
    gc.collect()
    time.sleep(1)
    left = resources() - before
    assert left < 3, f"LEFTOVER: close() leaves descriptors, threads, processes or files behind: {{left}} in 3 laps"
"""

_DIFFERS = '''{functions}


def in_a_process_with(function, seed):
    """The answers of a fresh interpreter, whose hashes and global random numbers start from *seed*."""
    code = "import random, sys, numpy; random.seed({{0}}); numpy.random.seed({{0}}); sys.path.insert(0, {{1!r}}); "
    code += "numpy.set_printoptions(threshold=sys.maxsize); import {{2}}; print({{2}}.{{3}}())"
    place, name = os.path.split(os.path.abspath(__file__))
    command = [sys.executable, "-c", code.format(seed, place, name.removesuffix(".py"), function)]
    return subprocess.check_output(command, env={{**os.environ, "PYTHONHASHSEED": str(seed)}}, text=True)


@pytest.mark.rl_isolated
def test_differs():
    one, other = in_a_process_with("{one}", {one_seed}), in_a_process_with("{other}", {other_seed})
    assert one == other, "DIFFERS: the same seed and actions, other answers"
'''

_READERS = {
    "python": ("sys.getallocatedblocks()", 500), "objects": ("len(gc.get_objects())", 500),
    "malloc": ("psutil.heap_info().heap_used + psutil.heap_info().mmap_used", 80_000),
    "fds": ("psutil.Process().num_fds()", 50), "threads": ("threading.active_count()", 50),
    "processes": ("len(psutil.Process().children())", 20), "zombies": ("len(psutil.Process().children())", 20),
    "tempfiles": ("len(os.listdir(tempfile.gettempdir()))", 50), "shm": ('len(os.listdir("/dev/shm"))', 20),
}  # fmt: skip
"""How a test reads each signal, and how much of it its laps keep together."""
_RESIDENT = ("psutil.Process().memory_info().rss", 4 * 2**20)


@dataclass(frozen=True)
class Target:
    """How a test reaches the env: ``from MODULE import NAME``, from *directory* if it is not installed. *command* found
    the case, *adapter* is the kind of env."""

    module: str
    name: str
    command: str
    directory: str = ""
    adapter: str = ""

    @property
    def kind(self) -> type[adapters.Adapter]:
        kind: type[adapters.Adapter] = getattr(adapters, self.adapter or "Adapter")
        return kind


def source_of_test(case: Case, target: Target, stall_after: float) -> str:
    """A file with one test. It needs pytest, numpy, psutil and the env's own module."""
    match case.finding.kind:
        case Kind.LEAK:
            code = _leak(case, target)
        case Kind.LEFTOVER:
            files = '"/dev/shm"' if case.finding.detail == "shared" else "tempfile.gettempdir()"
            code = _LEFTOVER.format(lap=_block(_lines(case.calls, target), 4), files=files)
        case Kind.DIFFERS:
            code = _differs(case, target)
        case _:
            name = f"test_{case.finding.kind.lower()}"
            code = f"{_markers(case, stall_after)}def {name}():\n{_block(_body(case, target), 4)}\n"
    if target.adapter and "play(" in code:
        code = f"{target.kind.play_source()}\n\n{code}"
    return f"{_heading(case, target)}{_imports(code, target)}\n\n{code}{_journal(case)}"


def _heading(case: Case, target: Target) -> str:
    finding = case.finding
    text = textwrap.wrap(escaped(f"{finding.kind}: {finding.text}"), _WIDTH)
    text += ["", f"Found by: {target.command}"]
    text += [f"Calls: {len(case.calls)}, shrunk from {counted(len(case.journal), 'call')}"]
    if case.seen < case.tries:
        text.append(f"It does not come every time: {case.seen} of {case.tries} replays showed it.")
    quoted = "\n".join(text).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{quoted}\n"""\n\n'


def _imports(code: str, target: Target) -> str:
    modules = ("copy", "gc", "os", "pickle", "subprocess", "sys", "tempfile", "threading", "time")
    plain = [name for name in modules if f"{name}." in code or (name == "sys" and target.directory)]
    lines = [f"import {name}" for name in plain]
    lines += ["from contextlib import suppress"] * ("suppress(" in code)
    lines += [""] * bool(lines)
    lines += ["import numpy as np"] * ("np." in code)
    lines += ["import psutil"] * ("psutil." in code)
    lines += ["import pytest"]
    lines += ["from gymnasium.spaces import GraphInstance"] * ("GraphInstance(" in code)
    lines += ["from gymnasium.vector.utils import batch_space"] * ("batch_space(" in code)
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


def _leak(case: Case, target: Target) -> str:
    growth = case.growth or Growth("resident memory", 1.0)
    read, enough = _READERS.get(growth.signal, _RESIDENT)
    laps = min(20_000, max(50, math.ceil(enough / growth.per_lap)))
    start, lap = case.calls[: case.lap_start], case.calls[case.lap_start :]
    return _LEAK.format(
        read=read, start=_block(_lines(start, target), 4) + "\n" * bool(start), lap=_block(_lap(lap, target), 8),
        laps=laps, limit=growth.per_lap / 4, signal=case.finding.text.split(" grow by ")[0],
    )  # fmt: skip


def _lap(calls: Sequence[Call], target: Target) -> list[str]:
    """The lines of a lap. Many steps are a loop that ends with the episode."""
    steps = [call for call in calls if call.op is Op.STEP]
    if len(steps) <= 8:
        return _lines(calls, target)
    others = _lines([call for call in calls if call.op is not Op.STEP], target)
    taken = _line(Call(Op.STEP, 0, _Source("action")), target)
    actions = textwrap.wrap(f"for action in [{', '.join(literal(call.value) for call in steps)}]:", _WIDTH - 8)
    return [*others, *actions, f"    _, _, terminated, truncated, *_ = {taken}",
            "    if np.any(terminated) or np.any(truncated):", "        break"]  # fmt: skip


def _differs(case: Case, target: Target) -> str:
    one, other = case.hash_seeds
    if one != other:
        functions = _answers("trajectory", case.calls, 0, target)
        return _DIFFERS.format(functions=functions, one="trajectory", other="trajectory", one_seed=one,
                               other_seed=other)  # fmt: skip
    functions = _answers("among_others", case.calls, last_start(case.calls), target)
    functions += "\n\n\n" + _answers("alone", alone(case.calls), 0, target)
    return _DIFFERS.format(functions=functions, one="among_others", other="alone", one_seed=0, other_seed=0)


def _answers(name: str, calls: Sequence[Call], since: int, target: Target) -> str:
    """A function that gives the answers to the calls on the first env, from number *since* on."""
    lines = ["answers = []"]
    for number, (call, line) in enumerate(zip(calls, _lines(calls, target), strict=True)):
        answers = number >= since and call.env == 0 and call.op in (Op.RESET, Op.STEP)
        part = f"[:{target.kind.compared}]" if call.op is Op.STEP else "[0]" * (target.adapter != "Sb3VectorAdapter")
        if call.op is Op.RESET and target.adapter == "TurnAdapter":
            lines += [line, "answers.append(env.last()[:4])"] if answers else [line]
        else:
            lines.append(f"answers.append({line}{part})" if answers else line)
    return f"def {name}():\n{_block([*lines, 'return repr(answers)'], 4)}"


def _body(case: Case, target: Target) -> Iterator[str]:
    """The lines of the test."""
    calls, last, finding = case.calls, len(case.calls) - 1, case.finding
    lines = _lines(calls, target, case.played.raised)
    if finding.kind is Kind.ALIAS:
        since = finding.since
        yield from _folded(lines[:since])
        yield from _observed(calls[since], lines[since], target)
        yield "kept = copy.deepcopy(observation)"
        yield from _folded(lines[since + 1 :])
        yield "np.testing.assert_equal(observation, kept)"
    elif finding.kind in (Kind.SPACE, Kind.NAN):
        yield from _folded(lines[:last])
        yield from _check(finding.kind, finding.detail, calls[last], lines[last], target)
    else:
        yield from _folded(lines)


def _observed(call: Call, line: str, target: Target) -> Iterator[str]:
    """Lines that make *call* and have its observation."""
    if call.op is Op.RESET and target.adapter == "TurnAdapter":
        yield line
        yield f"observation = {_NAMES[call.env]}.last()[0]"
    elif call.op is Op.RESET and target.adapter == "Sb3VectorAdapter":
        yield f"observation = {line}"
    else:
        yield f"observation, *_ = {line}"


def _check(kind: Kind, detail: str, call: Call, line: str, target: Target) -> Iterator[str]:
    """The last call, and what is wrong with its answer."""
    env = _NAMES[call.env]
    if detail == "reward":
        values = "[*reward.values()]" if target.adapter == "ParallelAdapter" else "reward"
        yield f"_, reward, *_ = {line}"
        yield f'assert np.isfinite(np.asarray({values}, dtype=float)).all(), f"the reward is {{reward}}"'
    elif detail in ("answer", "flag", "info"):
        count = 2 if call.op is Op.RESET else 5
        yield f"answer = {line}"
        yield f'assert isinstance(answer, tuple) and len(answer) == {count}, f"not {count} values: {{answer}}"'
        if detail == "info":
            yield 'assert isinstance(answer[-1], dict), f"the info is {answer[-1]!r}"'
        if detail == "flag":
            yield 'assert all(flag in (True, False) for flag in answer[2:4]), f"not flags: {answer[2:4]}"'
    else:
        yield from _observed(call, line, target)
        if kind is Kind.NAN:
            yield "np.set_printoptions(threshold=10**9)"
            yield 'assert "nan" not in repr(observation), "the observation has a NaN"'
        else:
            check = target.kind.check.replace("env.", f"{env}.")
            yield f'assert {check}, f"{{observation}} is not in {{{env}.observation_space}}"'


def _lines(calls: Sequence[Call], target: Target, raised: frozenset[int] = frozenset()) -> list[str]:
    """The source of each call. One that has *raised* an exception may do so again."""
    lines = [_line(call, target) for call in calls]
    return [f"with suppress(Exception):\n    {line}" if at in raised else line for at, line in enumerate(lines)]


def _line(call: Call, target: Target) -> str:
    """The source of one call."""
    env = _NAMES[call.env]
    match call.op:
        case Op.MAKE:
            return f"{env} = {target.name}()"
        case Op.RESET if target.adapter == "Sb3VectorAdapter":
            seed = "" if call.value[0] is None else f"{env}.seed({call.value[0]}) and "
            return f"{seed}{env}.reset()"
        case Op.RESET:
            given = zip(("seed", "options"), call.value, strict=True)
            return f"{env}.reset({', '.join(f'{name}={literal(one)}' for name, one in given if one is not None)})"
        case Op.STEP:
            action = literal(call.value)
            return f"play({env}, {action})" if target.adapter else f"{env}.step({action})"
        case Op.PICKLE | Op.COPY:
            made = env if call.value is None else _NAMES[call.value]
            return f"{made} = " + (
                f"copy.deepcopy({env})" if call.op is Op.COPY else f"pickle.loads(pickle.dumps({env}))"
            )
        case Op.DROP:
            return f"del {env}\ngc.collect()"
        case _:
            return f"{env}.{call.name}"


def _folded(lines: Sequence[str]) -> Iterator[str]:
    """Equal lines that follow each other become a loop."""
    for line, group in groupby(lines):
        count = len(list(group))
        if count > 2:
            yield f"for _ in range({count}):"
            yield textwrap.indent(line, "    ")
        else:
            yield from [line] * count


def _block(lines: Sequence[str] | Iterator[str], indent: int) -> str:
    return textwrap.indent("\n".join(lines), " " * indent)


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
    shown = call.value not in (None, (None, None)) if call.op is not Op.STEP else True
    value = literal(call.value).replace(" ", "") if shown else ""
    return f"{call.op.name.lower()}{call.env or ''}({value if len(value) < 40 else '...'})"


@dataclass(frozen=True)
class _Source:
    """A value that is written as this source."""

    text: str


def literal(value: Any) -> str:
    """Source that makes *value* again.

    >>> literal(np.int64(3)), literal(np.array([0.5, np.inf], dtype=np.float32))
    ('3', 'np.array([0.5, np.inf], dtype=np.float32)')
    """
    if isinstance(value, np.ndarray):
        first = value.flat[0] if value.size else 0
        if value.size > 8 and (value == first).all():
            return f"np.full({value.shape}, {_numbers(first)}, dtype=np.{value.dtype})"
        shape = "" if value.size else f".reshape({value.shape})"
        return f"np.array({_numbers(value)}, dtype=np.{value.dtype}){shape}"
    if isinstance(value, np.generic):
        return literal(value.item())
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(name)}: {literal(one)}" for name, one in value.items()) + "}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a GraphInstance
        return f"{type(value).__name__}({', '.join(f'{n}={literal(getattr(value, n))}' for n in value._fields)})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return value.text if isinstance(value, _Source) else repr(value)


def _numbers(value: Any) -> str:
    """Nested lists, each number as short as its type allows: ``0.1`` for a float32 that prints so."""
    if isinstance(value, np.ndarray) and value.ndim:
        return "[" + ", ".join(map(_numbers, value)) + "]"
    number = value[()] if isinstance(value, np.ndarray) else value
    return _float(float(str(number))) if isinstance(number, np.floating) else repr(getattr(number, "item", int)())


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"np.{value}".replace("np.-", "-np.")
