"""The conditions that a diagnosis changes, one at a time."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from pytest_rlstability.child.library_changes import LOAD, VEC_ENV
from pytest_rlstability.diagnose.trials import Condition
from pytest_rlstability.osinfo.conditions import NO_GPU, THREAD_VARIABLES, without_avx

STAGE = "ends after stage "
_FILLED = {"PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"}


def conditions(
    *, is_test: bool, seeded: bool, stages: Sequence[str], pythons: Sequence[str], used: Container[str] = ()
) -> list[Condition]:
    """Those that make sense here, in the order in which they are tried: the frequent causes first."""
    return [
        Condition("one thread", "OpenMP, BLAS and torch use one thread", dict.fromkeys(THREAD_VARIABLES, "1"),
                  advice="limit the threads (OMP_NUM_THREADS=1, torch.set_num_threads(1)), or do not fork after "
                  "native threads were used"),
        *_start_methods(is_test),
        *_libraries(used),
        Condition("one processor", "all threads and processes on one processor", inside={"processors": 1},
                  advice="look for a race: what may run at the same time that must not"),
        Condition("quick switches", "Python threads switch every microsecond", inside={"switch_interval": 1e-6},
                  advice="look for a race between Python threads"),
        Condition("gc off", "no garbage collection", inside={"gc": "off"},
                  advice="an object is collected while native code still uses it, or its finalizer does the damage"),
        Condition("gc often", "garbage collection at every allocation", inside={"gc": "often"},
                  advice="an object is collected while native code still uses it"),
        Condition("no SIMD", "no instructions beyond those of every 64-bit processor", _without_simd(),
                  advice="the vectorised code is at fault: update the library, or set ATEN_CPU_CAPABILITY=default"),
        *_gpu(),
        Condition("filled memory", "debug allocator, new and freed memory is filled", _FILLED,
                  advice="memory is used before it is written, after it was freed, or beyond its end"),
        *_hashes_and_seeds(is_test, seeded),
        *_address_space(),
        Condition("no memory limit", "the soft limits of memory and stack lifted", inside={"limits": "none"},
                  options=("--rl-memory=0",) if is_test else (),
                  advice="it runs out of memory or stack: raise the limit, and check what allocation failures do"),
        *(Condition(f"Python {python}", f"run by {python}", python=python, advice=f"it works with {python}")
          for python in pythons),
        *(Condition(f"{STAGE}{stage!r}", f"it ends when stage {stage!r} is done", inside={"stop_after": stage})
          for stage in dict.fromkeys(stages)),
    ]  # fmt: skip


def _without_simd() -> dict[str, str | None]:
    hwcaps = "glibc.cpu.hwcaps=-AVX2_Usable,-AVX512F_Usable,-AVX2,-AVX512F,-EVEX"
    return {**without_avx(), "GLIBC_TUNABLES": hwcaps}


def _start_methods(is_test: bool) -> Iterator[Condition]:
    if sys.platform == "linux":
        yield Condition("workers by fork", "worker processes are forked", inside={"start_method": "fork"},
                        advice="start workers by 'fork'")  # fmt: skip
    yield Condition("workers by spawn", "worker processes are fresh interpreters", inside={"start_method": "spawn"},
                    advice="start workers by 'spawn': a fork copies locks, not the threads that hold them")  # fmt: skip
    if is_test:
        yield Condition("test by spawn", "the test runs in a fresh interpreter", options=("--rl-backend=spawn",),
                        advice="something that is imported or set up before the test is inherited by fork")  # fmt: skip


def _libraries(used: Container[str]) -> Iterator[Condition]:
    """Those that concern what the plain runs used."""
    if VEC_ENV in used:
        yield Condition("envs in one process", "vector environments run in the script's own process",
                        inside={"vec_env": "one process"},
                        advice="use DummyVecEnv or SyncVectorEnv, and look at what the workers share")  # fmt: skip
        yield Condition("one worker", "vector environments have one worker", inside={"vec_env": "one worker"},
                        advice="use fewer workers, and look at what they share or use up together")  # fmt: skip
    if LOAD in used:
        yield Condition("model not loaded", "models are made instead of loaded", inside={"model": "new"},
                        advice="the saved model is at fault: look at it with rlstability audit")  # fmt: skip


def _gpu() -> Iterator[Condition]:
    if Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists():
        yield Condition("CPU only", "no GPU is visible", NO_GPU, advice="the GPU's driver or kernels are at fault")


def _hashes_and_seeds(is_test: bool, seeded: bool) -> Iterator[Condition]:
    if "PYTHONHASHSEED" not in os.environ:
        yield Condition("hash seed 0", "sets and dicts of strings have the same order every time",
                        {"PYTHONHASHSEED": "0"},
                        advice="the order of a set or of hashes matters: sort before you iterate")  # fmt: skip
    option = "--rl-seed" if is_test else "--seed"
    for seed in (1, 2) if seeded else (1,):
        yield Condition(f"seed {seed}", f"all random numbers from seed {seed}", options=(f"{option}={seed}",),
                        advice="only some random numbers lead there: compare what they decide")  # fmt: skip


def _address_space() -> Iterator[Condition]:
    if (setarch := shutil.which("setarch")) is not None:
        yield Condition("no ASLR", "the same addresses every time", prefix=(setarch, "-R"),
                        advice="it depends on addresses: uninitialised memory or a wild pointer")  # fmt: skip
