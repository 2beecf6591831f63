"""What is said about the memory of a script that has ended."""

from __future__ import annotations

from pytest_rlstability.model.series import SampleTable
from pytest_rlstability.script.summary import memory_growth

MIB = 2**20


def samples(*memory: float, beats_a_second: int = 2) -> SampleTable:
    table = SampleTable(512)
    for second, value in enumerate(memory):
        table.add(beats_a_second * second, float(second), {"rss": value})
    return table


def test_steady_growth_is_told_per_minute_and_per_heartbeat() -> None:
    text = memory_growth(samples(*(100 * MIB + second * MIB for second in range(200))), 1000 * MIB)
    assert text.startswith("memory grew by 60.0 MiB per minute, 512.0 KiB per heartbeat; at this rate the rest lasts")


def test_without_heartbeats_only_time_counts() -> None:
    table = samples(*(100 * MIB + second * MIB for second in range(200)), beats_a_second=0)
    assert "heartbeat" not in memory_growth(table, None)


def test_a_buffer_that_fills_and_a_level_line_do_not_grow() -> None:
    assert memory_growth(samples(*(100 * MIB + min(second, 60) * MIB for second in range(200))), None) == ""
    assert memory_growth(samples(*[100 * MIB] * 200), None) == ""
    assert memory_growth(samples(), None) == ""


def test_a_start_is_not_steady_growth() -> None:
    assert memory_growth(samples(*(100 * MIB + second * MIB for second in range(15))), None) == ""
