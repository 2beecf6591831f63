"""Known-bad combinations: each applies to some facts, and does not apply to facts close to them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_rlstability.doctor.advice import KNOWN, Advice, advise

MIB, GIB = 2**20, 2**30

HEALTHY: dict[str, Any] = {
    "platform": "linux",
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "wsl": 0,
    "ptrace_scope": 1,
    "cpu_flags": ["avx", "avx2"],
    "cpu_flags_known": True,
    "cpus": 8,
    "cpus_allowed": 8,
    "cpu_limit": None,
    "memory": 16 * GIB,
    "memory_limit": None,
    "shm_bytes": 8 * GIB,
    "limits": {"nofile": 1024, "stack": 8 * MIB},
    "python": {"version": "3.12.1", "bits": 64, "debug": False, "free_threaded": False},
    "tools": {"pystack": "", "gdb": "/usr/bin/gdb"},
    "cuda": {"libraries": [], "devices": []},
    "variables": {},
    "distributions": {"numpy": "2.4.6", "torch": "2.13.0+cpu", "stable-baselines3": "2.9.2", "gymnasium": "1.4.0"},
    "openmp": ["/site-packages/torch/lib/libgomp.so.1"],
    "fork_after_threads": "works",
}

# name -> (facts it applies to), (facts close to them that it does not apply to)
CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "small-shared-memory": ([{"shm_bytes": 64 * MIB}], [{"shm_bytes": GIB}, {"shm_bytes": None}]),
    "small-memory": (
        [{"memory_limit": GIB}, {"memory": GIB}, {"memory_limit": GIB, "memory": None}],
        [{"memory_limit": 4 * GIB}, {"memory": None}],
    ),
    "wsl-1": ([{"wsl": 1}], [{"wsl": 2}]),
    "wsl-cuda-driver": (
        [{"wsl": 2, "cuda": {"libraries": ["/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib64/libcuda.so.1"]}}],
        [
            {"wsl": 2, "cuda": {"libraries": ["/usr/lib/wsl/lib/libcuda.so.1"]}},
            {"wsl": 0, "cuda": {"libraries": ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]}},
        ],
    ),
    "duplicate-openmp": (
        [{"openmp": ["/a/libiomp5.so", "/b/libomp.so.5"]}, {"openmp": ["/a/libomp.dylib", "/b/libomp.dylib"]}],
        [{"openmp": ["/a/libgomp.so.1", "/b/libgomp-a34b3233.so.1.0.0"]}, {"openmp": ["/a/libiomp5.so"]}],
    ),
    "mixed-openmp": (
        [{"openmp": ["/a/libgomp.so.1", "/b/libiomp5.so"]}],
        [{"openmp": ["/a/libgomp.so.1", "/b/libgomp-a34b3233.so.1.0.0"]}, {"openmp": ["/a/libiomp5.so"]}],
    ),
    "kmp-duplicate-lib-ok": (
        [{"variables": {"KMP_DUPLICATE_LIB_OK": "TRUE"}}, {"variables": {"KMP_DUPLICATE_LIB_OK": "True"}}],
        [{"variables": {"KMP_DUPLICATE_LIB_OK": "FALSE"}}],
    ),
    "fork-after-threads": (
        [{"fork_after_threads": "hangs"}, {"fork_after_threads": "dies (SIGSEGV)"}],
        [{"fork_after_threads": "works"}, {"fork_after_threads": ""}],
    ),
    "numpy-2-old-torch": (
        [{"distributions": {"numpy": "2.0.0", "torch": "2.2.2+cu121"}}],
        [
            {"distributions": {"numpy": "2.0.0", "torch": "2.3.0"}},
            {"distributions": {"numpy": "1.26.4", "torch": "2.2.2"}},
            {"distributions": {"numpy": "2.0.0"}},
        ],
    ),
    "numpy-2-old-sb3": (
        [{"distributions": {"numpy": "2.1.0", "stable-baselines3": "2.4.1"}}],
        [
            {"distributions": {"numpy": "2.1.0", "stable-baselines3": "2.5.0"}},
            {"distributions": {"numpy": "1.26.4", "stable-baselines3": "2.3.2"}},
            {"distributions": {"stable-baselines3": "2.3.2"}},
        ],
    ),
    "gymnasium-1-old-sb3": (
        [{"distributions": {"gymnasium": "1.0.0", "stable-baselines3": "2.3.2"}}],
        [
            {"distributions": {"gymnasium": "1.0.0", "stable-baselines3": "2.4.0"}},
            {"distributions": {"gymnasium": "0.29.1", "stable-baselines3": "2.3.2"}},
        ],
    ),
    "gym-beside-gymnasium": (
        [{"distributions": {"gym": "0.26.2", "gymnasium": "1.0.0"}}],
        [{"distributions": {"gymnasium": "1.0.0"}}, {"distributions": {"gym": "0.21.0"}}],
    ),
    "overlapping-distributions": (
        [
            {"distributions": {"opencv-python": "4.10.0", "opencv-python-headless": "4.10.0"}},
            {"distributions": {"box2d": "2.3.10", "box2d-py": "2.3.8"}},
        ],
        [{"distributions": {"opencv-python-headless": "4.10.0", "pygame": "2.6.1"}}],
    ),
    "musl": ([{"libc": "musl"}], [{"libc": "glibc 2.17"}, {"libc": ""}]),
    "missing-avx": (
        [{"cpu_flags": ["sse4_2"]}, {"cpu_flags": ["sse4_2", "avx"]}],
        [{"cpu_flags": [], "cpu_flags_known": False}, {"cpu_flags": [], "machine": "aarch64"}],
    ),
    "many-threads": (
        [
            {"variables": {"OMP_NUM_THREADS": "16"}},
            {"variables": {"OMP_NUM_THREADS": "4"}, "cpu_limit": 2.0},
            {"variables": {"MKL_NUM_THREADS": "9"}},
            {"cpus_allowed": 64, "cpu_limit": 2.0},
        ],
        [
            {"variables": {"OMP_NUM_THREADS": "8"}},
            {"variables": {"OMP_NUM_THREADS": "1"}, "cpu_limit": 0.5},
            {"variables": {"OMP_NUM_THREADS": "4,2"}},
            {"cpus_allowed": 64, "cpu_limit": 2.0, "variables": {"OMP_NUM_THREADS": "2"}},
            {"cpus_allowed": 4, "cpu_limit": 3.5},
            {"cpus_allowed": 64, "cpu_limit": None},
        ],
    ),
    "few-descriptors": ([{"limits": {"nofile": 256}}], [{"limits": {"nofile": None}}, {"limits": {}}]),
    "small-stack": ([{"limits": {"stack": MIB}}], [{"limits": {"stack": None}}]),
    "no-tracing": ([{"ptrace_scope": 3}, {"ptrace_scope": 2}], [{"ptrace_scope": None}, {"ptrace_scope": 0}]),
    "no-stack-tool": (
        [{"tools": {"pystack": "", "gdb": ""}}],
        [{"tools": {"pystack": "", "gdb": ""}, "platform": "darwin"}, {"tools": {"pystack": "/pystack", "gdb": ""}}],
    ),
    "32-bit-python": ([{"python": {"bits": 32}}], [{"python": {"bits": 64}}]),
    "debug-python": ([{"python": {"debug": True}}], [{"python": {"debug": False}}]),
    "free-threaded-python": ([{"python": {"free_threaded": True}}], [{"python": {"free_threaded": False}}]),
    "preloaded-library": ([{"variables": {"LD_PRELOAD": "/usr/lib/libjemalloc.so"}}], [{"variables": {}}]),
}  # fmt: skip


def advice_on(name: str, facts: dict[str, Any]) -> Advice | None:
    return next((advice for advice in advise({**HEALTHY, **facts}) if advice.name == name), None)


def test_every_known_combination_has_cases() -> None:
    assert sorted(CASES) == sorted(name for name, *_ in KNOWN)


@pytest.mark.parametrize("name", CASES)
def test_culprits_are_named_and_innocents_left_alone(name: str) -> None:
    culprits, innocents = CASES[name]
    for facts in culprits:
        found = advice_on(name, facts)
        assert found is not None, facts
        assert found.found
        assert found.do
    for facts in innocents:
        assert advice_on(name, facts) is None, facts


def test_healthy_machine_gets_no_advice() -> None:
    assert advise(HEALTHY) == []


def test_nothing_known_is_no_reason_for_advice() -> None:
    assert advise({}) == []


@pytest.mark.parametrize(("version", "warns"), [("3.12.1", True), ("3.11.7", False)])
def test_fork_advice_mentions_the_warning_of_newer_pythons(version: str, warns: bool) -> None:
    found = advice_on("fork-after-threads", {"fork_after_threads": "hangs", "python": {"version": version}})
    assert found is not None
    assert ("DeprecationWarning" in found.do) == warns
