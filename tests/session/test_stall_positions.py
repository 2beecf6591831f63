"""Whether threads that compute stay where they are, by stacks that were asked for."""

from __future__ import annotations

from pytest_rlstability.session.watchdogs.positions import Positions


def stack(line: int, function: str = "wait", caller: int = 40) -> str:
    return f'Stack:\n  File "env.py", line {line} in {function}\n  File "test_env.py", line {caller} in test_env\n'


def test_a_loop_of_few_lines_stays_where_it_is() -> None:
    where = Positions()
    assert not any(where.changed({7: stack(line)}) for line in (3, 4, 3, 5, 5, 4, 3))
    assert where.text == 'File "env.py", line 3 in wait'
    assert where.changed({7: stack(6)})
    assert not where.changed({7: stack(6)})


def test_another_function_or_another_call_of_it_is_another_place() -> None:
    where = Positions()
    assert not where.changed({7: stack(3)})
    assert where.changed({7: stack(3, "step")})
    assert where.changed({7: stack(3, "step", caller=41)})


def test_what_does_not_arrive_is_no_news() -> None:
    where = Positions()
    assert not where.changed({7: stack(3)})
    assert not where.changed({7: stack(3)[:50]}), "cut short on a busy machine"
    assert not where.changed({7: ""})
    assert not where.changed({7: stack(3), 8: stack(9)}), "a thread that was not asked before"
    assert not where.changed({8: stack(9)})
    assert where.changed({7: stack(3), 8: stack(9, "step")})
