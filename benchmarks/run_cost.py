"""What ``rlstability run`` costs a real SB3 PPO run: processor time of the training, watched and not, in turn.

    python benchmarks/run_cost.py [ROUNDS [STEPS]]

Processor time, because it does not depend on what else the machine does. The watching process's own is counted too.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = """
import sys, time
import torch
from stable_baselines3 import PPO
from pytest_rlstability.integrations import HeartbeatCallback

torch.set_num_threads(1)
model = PPO("MlpPolicy", "CartPole-v1", seed=1)
began = time.process_time()
model.learn(int(sys.argv[2]), callback=HeartbeatCallback())
open(sys.argv[1], "w").write(str(time.process_time() - began))
"""


def seconds(script: Path, steps: int, watched: bool) -> tuple[float, float]:
    """Processor seconds of the training, and of everything that was started."""
    result = script.with_suffix(".txt")
    words = [sys.executable, str(script), str(result), str(steps)]
    if watched:
        words = [sys.executable, "-m", "pytest_rlstability", "run", "--", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(result.read_text()), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds, steps = [int(given) for given in (*sys.argv[1:], *("5", "12000")[len(sys.argv) - 1 :])]
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "train.py")
        script.write_text(TRAIN)
        pairs = []
        for _ in range(rounds):
            pairs.append((seconds(script, steps, False), seconds(script, steps, True)))
            print(*(f"{value:.2f}" for pair in pairs[-1] for value in pair), flush=True)
    for what, index in (("training", 0), ("all processes", 1)):
        plain, watched = (statistics.median(pair[side][index] for pair in pairs) for side in (0, 1))
        print(f"{what}: {plain:.2f} s, watched {watched:.2f} s of processor time: {100 * (watched / plain - 1):+.1f} %")


if __name__ == "__main__":
    main()
