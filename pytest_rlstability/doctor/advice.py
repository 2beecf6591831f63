"""Known-bad combinations: one pure function each, facts in, advice out or None. ``KNOWN`` lists them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_rlstability.doctor.checks.libraries import openmp_family
from pytest_rlstability.units import format_size

Facts = Mapping[str, Any]
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class Advice:
    """What was found, and what to do about it."""

    name: str
    found: str
    do: str


def advise(facts: Facts) -> list[Advice]:
    """All advice that *facts* give rise to.

    >>> [advice.name for advice in advise({"libc": "musl", "shm_bytes": 64 * 2**20})]
    ['small-shared-memory', 'musl']
    """
    return [advice for known in KNOWN if (advice := known(facts)) is not None]


def version_of(facts: Facts, distribution: str) -> tuple[int, ...]:
    """The first two numbers of an installed distribution's version, ``()`` when it is not installed."""
    found = re.match(r"(\d+)\.(\d+)", facts.get("distributions", {}).get(distribution, ""))
    return (int(found[1]), int(found[2])) if found else ()


def usable_cpus(facts: Facts) -> float:
    """Processors' worth of time this process can get, by affinity and control group."""
    cpus = float(facts.get("cpus_allowed") or facts.get("cpus") or 1)
    limit = facts.get("cpu_limit")
    return min(cpus, limit) if limit else cpus


def _variable(facts: Facts, name: str) -> str:
    return str(facts.get("variables", {}).get(name, ""))


def small_shared_memory(facts: Facts) -> Advice | None:
    size = facts.get("shm_bytes")
    if size is None or size >= 256 * _MIB:
        return None
    return Advice(
        "small-shared-memory",
        f"/dev/shm holds {format_size(size)}",
        "DataLoader workers, shared tensors and Gymnasium's AsyncVectorEnv keep their data there and die by SIGBUS "
        "when it is full: docker run --shm-size=1g (or --ipc=host), in Kubernetes an emptyDir of medium Memory.",
    )


def small_memory(facts: Facts) -> Advice | None:
    limit, total = facts.get("memory_limit"), facts.get("memory")
    usable = min(value for value in (limit, total, 2 * _GIB) if value is not None)
    if usable >= 2 * _GIB:
        return None
    remedy = (
        "Give the container more (docker run --memory)" if limit == usable else "Fewer workers, or a larger machine"
    )
    return Advice(
        "small-memory",
        f"only {format_size(usable)} of memory may be used",
        "torch alone takes some hundred MiB in every worker process, and the kernel ends what goes beyond by SIGKILL. "
        f"{remedy}; rl_isolated(memory=...) names the test that needs it.",
    )


def wsl_one(facts: Facts) -> Advice | None:
    if facts.get("wsl") != 1:
        return None
    return Advice(
        "wsl-1",
        "this is WSL 1, which has no Linux kernel of its own",
        "No CUDA, and much of /proc that stalls and leaks are told by is missing: wsl --set-version DISTRIBUTION 2.",
    )


def wsl_cuda_driver(facts: Facts) -> Advice | None:
    libraries = facts.get("cuda", {}).get("libraries", [])
    foreign = [path for path in libraries if "/wsl/" not in path]
    if facts.get("wsl") != 2 or not foreign:
        return None
    return Advice(
        "wsl-cuda-driver",
        f"a Linux NVIDIA driver is installed inside WSL2 ({foreign[0]})",
        "Under WSL2 libcuda comes from Windows, in /usr/lib/wsl/lib; a Linux driver package hides it. Remove that "
        "package, keep only the driver of Windows.",
    )


def duplicate_kmp(facts: Facts) -> Advice | None:
    copies = [path for path in facts.get("openmp", []) if openmp_family(path) in ("iomp5", "omp")]
    if len(copies) < 2:
        return None
    return Advice(
        "duplicate-openmp",
        f"{len(copies)} copies of the Intel/LLVM OpenMP runtime in one process: {', '.join(copies)}",
        "The second aborts with 'OMP: Error #15', or both go on and may deadlock. Install the libraries that bring "
        "them from one source (all by pip, or all by conda). KMP_DUPLICATE_LIB_OK=TRUE only silences the check.",
    )


def mixed_openmp(facts: Facts) -> Advice | None:
    families = sorted({openmp_family(path) for path in facts.get("openmp", [])} - {""})
    if len(families) < 2 or "gomp" not in families:
        return None
    return Advice(
        "mixed-openmp",
        f"different OpenMP runtimes in one process: {', '.join(f'lib{family}' for family in families)}",
        "Each keeps threads of its own, together more than there are processors, and none knows of the others' locks "
        "at fork. Set OMP_NUM_THREADS, and start workers by 'spawn' or 'forkserver'.",
    )


def silenced_openmp_check(facts: Facts) -> Advice | None:
    value = _variable(facts, "KMP_DUPLICATE_LIB_OK")
    if value.upper() not in ("TRUE", "1", "YES", "ON", "T", "Y"):
        return None
    return Advice(
        "kmp-duplicate-lib-ok",
        f"KMP_DUPLICATE_LIB_OK={value} is set",
        "It silences the check for two OpenMP runtimes; by that check's own words crashes and silently wrong results "
        "may follow. Unset it and see which library brings the second one.",
    )


def fork_after_threads(facts: Facts) -> Advice | None:
    outcome = facts.get("fork_after_threads", "")
    if outcome in ("", "works"):
        return None
    warning = ""
    if _python_version(facts) >= (3, 12):
        warning = " Python 3.12 and later also warn (DeprecationWarning) when a process with threads forks."
    return Advice(
        "fork-after-threads",
        f"a process forked after torch has computed with several threads {outcome} in its first computation",
        "The threads of OpenMP's pool do not exist in the fork. Start workers by 'forkserver' or 'spawn' "
        "(SubprocVecEnv(start_method=...), AsyncVectorEnv(context=...), DataLoader(multiprocessing_context=...)), or "
        f"call torch.set_num_threads(1) first thing in them.{warning}",
    )


def numpy_two_old_torch(facts: Facts) -> Advice | None:
    torch = version_of(facts, "torch")
    if version_of(facts, "numpy") < (2, 0) or not () < torch < (2, 3):
        return None
    return Advice(
        "numpy-2-old-torch",
        "numpy 2 with a torch that was built for numpy 1",
        "torch works with numpy 2 from 2.3 on: pip install 'torch>=2.3', or 'numpy<2'.",
    )


def numpy_two_old_sb3(facts: Facts) -> Advice | None:
    if version_of(facts, "numpy") < (2, 0) or not () < version_of(facts, "stable-baselines3") < (2, 5):
        return None
    return Advice(
        "numpy-2-old-sb3",
        "numpy 2 with a Stable-Baselines3 before 2.5",
        "Its support for numpy 2 came with 2.5: pip install 'stable-baselines3>=2.5', or 'numpy<2'.",
    )


def gymnasium_one_old_sb3(facts: Facts) -> Advice | None:
    if version_of(facts, "gymnasium") < (1, 0) or not () < version_of(facts, "stable-baselines3") < (2, 4):
        return None
    return Advice(
        "gymnasium-1-old-sb3",
        "Gymnasium 1 with a Stable-Baselines3 before 2.4",
        "Its support for Gymnasium 1 came with 2.4: pip install 'stable-baselines3>=2.4', or 'gymnasium<1'.",
    )


def old_gym(facts: Facts) -> Advice | None:
    installed = facts.get("distributions", {})
    if "gym" not in installed or "gymnasium" not in installed:
        return None
    return Advice(
        "gym-beside-gymnasium",
        f"gym {installed['gym']} is installed beside gymnasium",
        "gym is no longer maintained and does not support numpy 2; its spaces are not gymnasium's, so an environment "
        "made of both is refused or misread. Import gymnasium everywhere, and pip uninstall gym.",
    )


_SAME_MODULE = {
    "cv2": (
        "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
    ),
    "pygame": ("pygame", "pygame-ce"),
    "PIL": ("pillow", "pillow-simd"),
    "Box2D": ("box2d", "box2d-py", "box2d-kengz"),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
}  # fmt: skip


def overlapping_distributions(facts: Facts) -> Advice | None:
    installed = facts.get("distributions", {})
    clashes = {
        module: present
        for module, names in _SAME_MODULE.items()
        if len(present := [name for name in names if name in installed]) > 1
    }
    if not clashes:
        return None
    found = "; ".join(f"{' and '.join(names)} both write the module {module}" for module, names in clashes.items())
    names = " ".join(name for present in clashes.values() for name in present)
    return Advice(
        "overlapping-distributions",
        found,
        f"Files of one lie among those of the other, native libraries too: pip uninstall {names}, then install one.",
    )


def musl(facts: Facts) -> Advice | None:
    if facts.get("libc") != "musl":
        return None
    return Advice(
        "musl",
        "this Python runs on musl (Alpine)",
        "torch has no wheels for musl, and wheels made for glibc do not load here. Use an image with glibc, such as "
        "python:3.12-slim.",
    )


def missing_avx(facts: Facts) -> Advice | None:
    if facts.get("machine") not in ("x86_64", "AMD64") or not facts.get("cpu_flags_known"):
        return None
    lacking = [flag for flag in ("avx", "avx2") if flag not in facts.get("cpu_flags", [])]
    if not lacking:
        return None
    return Advice(
        "missing-avx",
        f"the processor shows no {' and no '.join(flag.upper() for flag in lacking)}",
        "Official wheels of TensorFlow and jaxlib need AVX and die by SIGILL without; torch falls back to slow code. "
        "In a virtual machine choose the host's processor type (libvirt: host-passthrough, Proxmox: host).",
    )


def torch_below_processor(facts: Facts) -> Advice | None:
    capability = facts.get("torch", {}).get("cpu_capability", "")
    if capability != "DEFAULT" or "avx2" not in facts.get("cpu_flags", []):
        return None
    variable = _variable(facts, "ATEN_CPU_CAPABILITY")
    reason = f"ATEN_CPU_CAPABILITY={variable} asks for it" if variable else "this torch was built without AVX2"
    return Advice(
        "torch-without-avx2",
        f"the processor has AVX2 and torch does not use it: {reason}",
        "Unset the variable." if variable else "Install an official wheel of torch.",
    )


def many_threads(facts: Facts) -> Advice | None:
    cpus = usable_cpus(facts)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        value = _variable(facts, name)
        if value.isdigit() and int(value) > max(1.0, cpus):
            return Advice(
                "many-threads",
                f"{name}={value}, and {cpus:g} processors may be used",
                "Threads of one computation then wait for each other to get a processor. Set it to "
                f"{max(1, int(cpus))}, and to 1 in the workers of a vector environment.",
            )
    return None


def threads_by_host(facts: Facts) -> Advice | None:
    limit, cpus = facts.get("cpu_limit"), facts.get("cpus_allowed") or 1
    if not limit or limit > cpus / 2 or cpus < 4 or _variable(facts, "OMP_NUM_THREADS"):
        return None
    return Advice(
        "threads-by-host",
        f"the container may use {limit:g} processors, and libraries see {cpus}",
        "OpenMP and BLAS start a thread for each processor they see, and the container is stopped again and again for "
        f"using up its share: set OMP_NUM_THREADS={max(1, int(limit))}.",
    )


def few_descriptors(facts: Facts) -> Advice | None:
    limit = facts.get("limits", {}).get("nofile")
    if limit is None or limit >= 1024:
        return None
    return Advice(
        "few-descriptors",
        f"only {limit} files may be open at once (ulimit -n)",
        "Every worker of a vector environment takes pipes and every shared tensor a descriptor; 'Too many open files' "
        "is how it ends. ulimit -n 4096.",
    )


def small_stack(facts: Facts) -> Advice | None:
    limit = facts.get("limits", {}).get("stack")
    if limit is None or limit >= 4 * _MIB:
        return None
    return Advice(
        "small-stack",
        f"the stack may grow to {format_size(limit)} (ulimit -s)",
        "Deep recursion in native code, such as a long autograd graph, dies by SIGSEGV beyond it. ulimit -s 8192.",
    )


def no_tracing(facts: Facts) -> Advice | None:
    scope = facts.get("ptrace_scope")
    if scope not in (2, 3):
        return None
    who = "nobody" if scope == 3 else "only an administrator"
    return Advice(
        "no-tracing",
        f"kernel.yama.ptrace_scope is {scope}: {who} may look into another process",
        "Crashes and stalls are reported with Python stacks, without native ones. "
        + ("Only a reboot changes 3." if scope == 3 else "sudo sysctl kernel.yama.ptrace_scope=1."),
    )


def no_stack_tool(facts: Facts) -> Advice | None:
    tools = facts.get("tools")
    if facts.get("platform") != "linux" or not tools or any(tools.values()):
        return None
    return Advice(
        "no-stack-tool",
        "neither pystack nor gdb is installed",
        "Native stacks of crashes need one of them: pip install 'pytest-rlstability[native]'.",
    )


def narrow_python(facts: Facts) -> Advice | None:
    if facts.get("python", {}).get("bits", 64) == 64:
        return None
    return Advice(
        "32-bit-python",
        "this Python has 32 bits",
        "A process can use at most 4 GiB, and torch has no wheels for it. Install a 64-bit Python.",
    )


def debug_python(facts: Facts) -> Advice | None:
    if not facts.get("python", {}).get("debug"):
        return None
    return Advice(
        "debug-python",
        "this Python was built for debugging (--with-pydebug)",
        "It aborts where a release build goes on, which is good for finding faults; it is slow, and few libraries have "
        "wheels for it. Time nothing with it.",
    )


def free_threaded_python(facts: Facts) -> Advice | None:
    if not facts.get("python", {}).get("free_threaded"):
        return None
    return Advice(
        "free-threaded-python",
        "this Python was built without the GIL",
        "An extension that does not say it can do without turns the GIL on again with a RuntimeWarning; "
        "PYTHON_GIL=1 does so from the start, and tells whether a crash is a matter of that.",
    )


def preloaded(facts: Facts) -> Advice | None:
    value = _variable(facts, "LD_PRELOAD")
    if not value:
        return None
    return Advice(
        "preloaded-library",
        f"LD_PRELOAD={value}",
        "It is part of every process here, and of every crash. If a step fails, run the doctor once without it.",
    )


def _python_version(facts: Facts) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", facts.get("python", {}).get("version", ""))
    return (int(found[1]), int(found[2])) if found else ()


KNOWN: tuple[Callable[[Facts], Advice | None], ...] = (
    small_shared_memory,
    small_memory,
    wsl_one,
    wsl_cuda_driver,
    duplicate_kmp,
    mixed_openmp,
    silenced_openmp_check,
    fork_after_threads,
    numpy_two_old_torch,
    numpy_two_old_sb3,
    gymnasium_one_old_sb3,
    old_gym,
    overlapping_distributions,
    musl,
    missing_avx,
    torch_below_processor,
    many_threads,
    threads_by_host,
    few_descriptors,
    small_stack,
    no_tracing,
    no_stack_tool,
    narrow_python,
    debug_python,
    free_threaded_python,
    preloaded,
)
"""Every known-bad combination; a new one is a function above and its name here."""
