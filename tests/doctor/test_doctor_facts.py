"""Facts, read from trees of files as other machines have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_rlstability.doctor.checks.libraries import native_libraries, openmp_family
from pytest_rlstability.doctor.facts import gather_facts, wsl_version

MIB = 2**20


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_facts_of_this_machine_are_complete_and_json() -> None:
    facts = gather_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"]["bits"] in (32, 64)
    assert facts["cpus"] >= 1
    assert facts["memory"] is None or facts["memory"] > 64 * MIB


def test_wsl_two_with_a_driver_of_its_own(tmp_path) -> None:
    write(tmp_path, "proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@builder) (gcc 11)\n")
    write(tmp_path, "proc/sys/kernel/yama/ptrace_scope", "3\n")
    write(tmp_path, "proc/cpuinfo", "processor : 0\nmodel name : Some CPU\nflags : fpu sse4_2 avx\n\nprocessor : 1\n")
    write(tmp_path, "usr/lib/wsl/lib/libcuda.so.1", "")
    write(tmp_path, "usr/lib64/libcuda.so.1", "")
    write(tmp_path, "dev/dxg", "")
    facts = gather_facts(tmp_path, {"OMP_NUM_THREADS": "4", "HOME": "/root"})
    assert facts["wsl"] == 2
    assert facts["ptrace_scope"] == 3
    assert (facts["cpu_model"], facts["cpu_flags"]) == ("Some CPU", ["sse4_2", "avx"])
    assert [Path(path).relative_to(tmp_path).as_posix() for path in facts["cuda"]["libraries"]] == [
        "usr/lib/wsl/lib/libcuda.so.1", "usr/lib64/libcuda.so.1",
    ]  # fmt: skip
    assert [Path(path).name for path in facts["cuda"]["devices"]] == ["dxg"]
    assert facts["variables"] == {"OMP_NUM_THREADS": "4"}


def test_bare_machine_has_no_such_facts(tmp_path) -> None:
    facts = gather_facts(tmp_path, {})
    assert (facts["wsl"], facts["container"], facts["ptrace_scope"], facts["core_pattern"]) == (0, "", None, "")
    assert (facts["memory_limit"], facts["cpu_limit"], facts["shm_bytes"]) == (None, None, None)
    assert (facts["cpu_flags"], facts["cpu_flags_known"]) == ([], False)


@pytest.mark.parametrize(
    "version, expected",
    [
        ("Linux version 5.10.16.3-microsoft-standard-WSL2", 2),
        ("Linux version 6.6.87-custom-WSL2+", 2),
        ("Linux version 4.4.0-22621-Microsoft (Microsoft@Microsoft.com)", 1),
        ("Linux version 6.8.0-45-generic (buildd@lcy02)", 0),
        ("Linux version 5.15.0-1053-azure (buildd@lcy02-amd64-061)", 0),
    ],
)
def test_wsl_versions(version: str, expected: int) -> None:
    assert wsl_version(version) == expected


@pytest.mark.parametrize("marker, name", [(".dockerenv", "docker"), ("run/.containerenv", "podman")])
def test_containers(tmp_path, marker: str, name: str) -> None:
    write(tmp_path, marker, "")
    assert gather_facts(tmp_path, {})["container"] == name
    assert gather_facts(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})["container"] == "kubernetes"


@pytest.mark.parametrize(
    "file, family",
    [
        ("/site-packages/torch/lib/libgomp.so.1", "gomp"),
        ("/site-packages/pygame.libs/libgomp-a34b3233.so.1.0.0", "gomp"),
        ("/opt/intel/libiomp5.so", "iomp5"),
        ("/usr/lib/llvm/libomp.so.5", "omp"),
        ("/opt/homebrew/lib/libomp.dylib", "omp"),
        ("/usr/lib/libompitrace.so", ""),
        ("/usr/lib/libcompress.so", ""),
    ],
)
def test_openmp_families(file: str, family: str) -> None:
    assert openmp_family(file) == family


def test_libraries_among_mapped_files() -> None:
    mapped = ["/a b/libgomp.so.1", "/a b/libgomp.so.1", "", "[heap]", "/opt/libmkl_rt.so.2", "/lib/libc.so.6"]
    numpys = "/numpy.libs/libscipy_openblas64_-32a4b2a6.so"
    assert native_libraries([*mapped, numpys]) == {
        "openmp": ["/a b/libgomp.so.1"],
        "blas": [numpys, "/opt/libmkl_rt.so.2"],
    }
