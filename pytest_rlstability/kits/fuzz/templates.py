"""The tests of faults that a single play of the calls does not show: growth, leftovers, differences."""

from __future__ import annotations

import math
from collections.abc import Callable

from pytest_rlstability.kits.fuzz.calls import Call, Kind, Op
from pytest_rlstability.kits.fuzz.laboratory import Case

_LEAK = """@pytest.mark.rl_isolated
def test_leak():
{start}
    def lap():
{lap}

    for _ in range({laps}):
        lap()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range({laps}):
        lap()
    gc.collect()
    per_lap = (psutil.Process().memory_info().rss - before) / {laps}
    assert per_lap < {limit}, f"LEAK: {{per_lap:.0f}} bytes a lap"
"""

_LEFTOVER = """def lap():
{lap}


def resources():
    process = psutil.Process()
    return process.num_fds() + threading.active_count() + len(process.children(recursive=True))


@pytest.mark.rl_isolated
def test_leftover():
    lap()
    before = resources()
    for _ in range(3):
        lap()
    gc.collect()
    time.sleep(1)
    assert resources() < before + 3, "LEFTOVER: close() leaves descriptors, threads or processes behind each time"
"""

_DIFFERS = '''def trajectory():
    answers = []
{lap}
    return repr(answers)


def in_a_process_with(seed):
    """The answers of a fresh interpreter, with other hashes and other global random numbers."""
    code = "import random, sys, numpy; random.seed({{0}}); numpy.random.seed({{0}}); sys.path.insert(0, {{1!r}}); "
    code += "import {{2}}; print({{2}}.trajectory())"
    place, name = os.path.split(os.path.abspath(__file__))
    command = [sys.executable, "-c", code.format(seed, place, name.removesuffix(".py"))]
    return subprocess.check_output(command, env={{**os.environ, "PYTHONHASHSEED": str(seed)}}, text=True)


@pytest.mark.rl_isolated
def test_differs():
    assert in_a_process_with({one}) == in_a_process_with({other}), "DIFFERS: the same seed and actions, other answers"
'''

TEMPLATES = {Kind.LEAK: _LEAK, Kind.LEFTOVER: _LEFTOVER, Kind.DIFFERS: _DIFFERS}
_ENOUGH = 4 * 2**20
"""Bytes that the laps of a test for growth keep together."""


def repeated_test(case: Case, maker: str, line_of: Callable[[Call], str]) -> str:
    """The functions of the test. *line_of* gives the source of one call."""
    start, lap = case.calls[: case.lap_start], case.calls[case.lap_start :]
    lines = [line_of(call) for call in lap]
    if case.finding.kind is Kind.DIFFERS:
        kept = (f"answers.append({line}[:4])" if call.op is Op.STEP else f"answers.append({line}[0])" for call, line in
                zip(lap, lines, strict=True))  # fmt: skip
        lines = [
            line if call.op not in (Op.STEP, Op.RESET) else one
            for call, line, one in zip(lap, lines, kept, strict=True)
        ]
    indent = " " * (8 if case.finding.kind is Kind.LEAK else 4)
    laps = min(20_000, max(50, math.ceil(_ENOUGH / case.per_lap))) if case.per_lap else 0
    return TEMPLATES[case.finding.kind].format(
        start="".join(f"    {line_of(call)}\n" for call in start), lap="\n".join(f"{indent}{line}" for line in lines),
        laps=laps, limit=math.ceil(case.per_lap / 4), one=case.hash_seeds[0], other=case.hash_seeds[1],
    )  # fmt: skip
