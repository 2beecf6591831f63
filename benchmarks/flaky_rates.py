"""Error rates and mean number of runs of ``rl_flaky`` for tests with a known pass rate.

    python benchmarks/flaky_rates.py [--pass-rate 0.95] [--confidence 0.95] [--max-runs 60] [--tosses 20000]

Each row is one true pass rate: by exact calculation, and by so many simulated tests, with the usual fixed-size test of
max_runs runs beside them. That one is FLAKY when an exact binomial test says so; it always costs max_runs.
"""

from __future__ import annotations

import argparse
import random

from pytest_rlstability.verdicts.sequential import SequentialTest, interval

TRUE_RATES = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.3, 0.0)


def toss(test: SequentialTest, true_rate: float, dice: random.Random) -> tuple[str, int]:
    """One simulated test: its answer, and the runs it took."""
    runs = passes = 0
    while True:
        runs += 1
        passes += dice.random() < true_rate
        answer = test.decide(runs, passes)
        if answer != "open":
            return answer, runs


def exact(test: SequentialTest, true_rate: float) -> tuple[float, float, float]:
    """The probabilities of *broken* and *undecided*, and the mean number of runs."""
    ends = test.ends(true_rate).items()
    broken, undecided = (sum(weight for end, weight in ends if end[0] == word) for word in ("broken", "undecided"))
    return broken, undecided, sum(runs * weight for (_, runs, _), weight in ends)


def fixed_size_flaky(test: SequentialTest, true_rate: float, dice: random.Random, tosses: int) -> float:
    """How often a test of all max_runs runs says FLAKY."""
    verdicts = [interval(test.max_runs, passes, test.confidence)[1] < test.pass_rate for passes in range(test.max_runs)]
    verdicts.append(False)
    found = sum(verdicts[sum(dice.random() < true_rate for _ in range(test.max_runs))] for _ in range(tosses))
    return found / tosses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pass-rate", type=float, default=0.95)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--max-runs", type=int, default=60)
    parser.add_argument("--tosses", type=int, default=20_000)
    arguments = parser.parse_args()
    test = SequentialTest(arguments.pass_rate, arguments.confidence, arguments.max_runs)
    dice = random.Random(0)
    print(f"promised {test.pass_rate:g} at {test.confidence:g}, at most {test.max_runs} runs; ", end="")
    print(f"kept when {test.worse_rate:.3f} is ruled out, without a failure after {exact(test, 1.0)[2]:.0f} runs")
    print("true rate   FLAKY exact  simulated  undecided   mean runs exact  simulated   fixed-size FLAKY")
    for true_rate in sorted({*TRUE_RATES, test.pass_rate}, reverse=True):
        exactly_broken, undecided, exact_mean = exact(test, true_rate)
        tosses = [toss(test, true_rate, dice) for _ in range(arguments.tosses)]
        broken = sum(answer == "broken" for answer, _ in tosses) / len(tosses)
        mean = sum(runs for _, runs in tosses) / len(tosses)
        fixed = fixed_size_flaky(test, true_rate, dice, arguments.tosses // 10)
        print(
            f"{true_rate:9.3f} {exactly_broken:13.4f} {broken:10.4f} {undecided:10.4f} "
            f"{exact_mean:17.1f} {mean:10.1f} {fixed:18.3f}"
        )


if __name__ == "__main__":
    main()
