"""Known-bad combinations as a table, ``KNOWN``: facts in, advice out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_rlstability.doctor.checks.libraries import openmp_family
from pytest_rlstability.doctor.facts import Facts
from pytest_rlstability.model.units import format_size

_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class Advice:
    """What was found, and what to do about it."""

    name: str
    found: str
    do: str


def advise(facts: Facts) -> list[Advice]:
    """All advice that applies to *facts*.

    >>> [advice.name for advice in advise({"libc": "musl", "shm_bytes": 64 * 2**20})]
    ['small-shared-memory', 'musl']
    """
    advice = []
    for name, when, found, remedy in KNOWN:
        if values := when(facts):
            filled = values if isinstance(values, Mapping) else {"value": values}
            advice.append(Advice(name, found.format_map(filled), remedy.format_map(filled)))
    return advice


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version; ``()`` when there are none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else ()


def _installed(facts: Facts) -> dict[str, str]:
    return dict(facts.get("distributions", {}))


def _outdated(newer: str, since: tuple[int, int], older: str, before: tuple[int, int]) -> Callable[[Facts], bool]:
    """Whether *newer* has at least the version *since*, and *older* a version below *before*."""

    def found(facts: Facts) -> bool:
        versions = _installed(facts)
        return _version(versions.get(newer, "")) >= since and () < _version(versions.get(older, "")) < before

    return found


def _variable(facts: Facts, name: str) -> str:
    return str(facts.get("variables", {}).get(name, ""))


def _size_below(size: int | None, least: int) -> str:
    return format_size(size) if size is not None and size < least else ""


def _small_memory(facts: Facts) -> object:
    limit, total = facts.get("memory_limit"), facts.get("memory")
    usable = min(value for value in (limit, total, 2 * _GIB) if value is not None)
    container = "Give the container more (docker run --memory)"
    remedy = container if limit == usable else "Use fewer workers, or a larger machine"
    return usable < 2 * _GIB and {"size": format_size(usable), "remedy": remedy}


def _linux_driver_in_wsl(facts: Facts) -> str:
    libraries = facts.get("cuda", {}).get("libraries", []) if facts.get("wsl") == 2 else []
    return next((path for path in libraries if "/wsl/" not in path), "")


def _duplicate_openmp(facts: Facts) -> object:
    copies = [path for path in facts.get("openmp", []) if openmp_family(path) in ("iomp5", "omp")]
    return len(copies) > 1 and {"count": len(copies), "copies": ", ".join(copies)}


def _mixed_openmp(facts: Facts) -> str:
    families = sorted({openmp_family(path) for path in facts.get("openmp", [])} - {""})
    return ", ".join(f"lib{family}" for family in families) if len(families) > 1 and "gomp" in families else ""


def _silenced_openmp_check(facts: Facts) -> str:
    value = _variable(facts, "KMP_DUPLICATE_LIB_OK")
    return value if value.upper() in ("TRUE", "1", "YES", "ON", "T", "Y") else ""


def _fork_after_threads(facts: Facts) -> object:
    outcome = facts.get("fork_after_threads", "")
    warns = _version(facts.get("python", {}).get("version", "")) >= (3, 12)
    text = " Python 3.12 and later also warn (DeprecationWarning) when a process with threads forks."
    return outcome not in ("", "works") and {"outcome": outcome, "warning": text if warns else ""}


_SAME_MODULE = {
    "cv2": (
        "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
    ),
    "pygame": ("pygame", "pygame-ce"),
    "PIL": ("pillow", "pillow-simd"),
    "Box2D": ("box2d", "box2d-py", "box2d-kengz"),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
}  # fmt: skip


def _overlapping_distributions(facts: Facts) -> object:
    present = {module: [name for name in names if name in _installed(facts)] for module, names in _SAME_MODULE.items()}
    clashes = {module: names for module, names in present.items() if len(names) > 1}
    found = "; ".join(f"{' and '.join(names)} both write the module {module}" for module, names in clashes.items())
    return clashes and {"found": found, "names": " ".join(name for names in clashes.values() for name in names)}


def _missing_avx(facts: Facts) -> str:
    if facts.get("machine") not in ("x86_64", "AMD64") or not facts.get("cpu_flags_known"):
        return ""
    return " and no ".join(flag.upper() for flag in ("avx", "avx2") if flag not in facts.get("cpu_flags", []))


def _many_threads(facts: Facts) -> object:
    """Threads that a variable asks for; without one OpenMP and BLAS start one for each processor that they see."""
    seen = facts.get("cpus_allowed") or facts.get("cpus") or 1
    usable = min(float(seen), facts.get("cpu_limit") or seen)
    enough = {"usable": usable, "threads": max(1, int(usable))}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        value = _variable(facts, name)
        if value.isdigit() and int(value) > max(1.0, usable):
            return {"setting": f"{name}={value}", "variable": name, **enough}
    if seen >= max(4, 2 * usable) and not _variable(facts, "OMP_NUM_THREADS"):
        return {"setting": f"libraries see {seen} processors", "variable": "OMP_NUM_THREADS", **enough}
    return None


def _few_descriptors(facts: Facts) -> str:
    limit = facts.get("limits", {}).get("nofile")
    return str(limit) if limit is not None and limit < 1024 else ""


def _no_stack_tool(facts: Facts) -> bool:
    tools = facts.get("tools", {})
    return facts.get("platform") == "linux" and bool(tools) and not any(tools.values())


def _no_tracing(facts: Facts) -> object:
    return {
        2: {"scope": 2, "who": "only an administrator", "do": "sudo sysctl kernel.yama.ptrace_scope=1."},
        3: {"scope": 3, "who": "nobody", "do": "Only a reboot changes 3."},
    }.get(facts.get("ptrace_scope", 0))


KNOWN: tuple[tuple[str, Callable[[Facts], object], str, str], ...] = (
    ("small-shared-memory", lambda facts: _size_below(facts.get("shm_bytes"), 256 * _MIB),
        "/dev/shm holds {value}",
        "DataLoader workers, shared tensors and Gymnasium's AsyncVectorEnv keep their data there and die by SIGBUS "
        "when it is full: docker run --shm-size=1g (or --ipc=host), in Kubernetes an emptyDir of medium Memory."),
    ("small-memory", _small_memory,
        "only {size} of memory may be used",
        "torch alone takes some hundred MiB in every worker process, and the kernel kills a process that exceeds the "
        "limit (SIGKILL). {remedy}; rl_isolated(memory=...) names the test that needs it."),
    ("wsl-1", lambda facts: facts.get("wsl") == 1,
        "this is WSL 1, which has no Linux kernel of its own",
        "No CUDA, and much of /proc that stall and leak checks read is missing: wsl --set-version DISTRIBUTION 2."),
    ("wsl-cuda-driver", _linux_driver_in_wsl,
        "a Linux NVIDIA driver is installed inside WSL2 ({value})",
        "Under WSL2 libcuda comes from Windows, in /usr/lib/wsl/lib; a Linux driver package hides it. Remove that "
        "package, keep only the driver of Windows."),
    ("duplicate-openmp", _duplicate_openmp,
        "{count} copies of the Intel/LLVM OpenMP runtime in one process: {copies}",
        "The second aborts with 'OMP: Error #15', or both go on and may deadlock. Install the libraries that bring "
        "them from one source (all by pip, or all by conda). KMP_DUPLICATE_LIB_OK=TRUE only silences the check."),
    ("mixed-openmp", _mixed_openmp,
        "different OpenMP runtimes in one process: {value}",
        "Each keeps threads of its own, together more than there are processors, and none knows of the others' locks "
        "at fork. Set OMP_NUM_THREADS, and start workers by 'spawn' or 'forkserver'."),
    ("kmp-duplicate-lib-ok", _silenced_openmp_check,
        "KMP_DUPLICATE_LIB_OK={value} is set",
        "It silences the check for two OpenMP runtimes. That check itself warns of crashes and silently wrong results. "
        "Unset it and see which library brings the second one."),
    ("fork-after-threads", _fork_after_threads,
        "a process forked after torch has computed with several threads {outcome} in its first computation",
        "The threads of OpenMP's pool do not exist in the fork. Start workers by 'forkserver' or 'spawn' "
        "(SubprocVecEnv(start_method=...), AsyncVectorEnv(context=...), DataLoader(multiprocessing_context=...)), or "
        "call torch.set_num_threads(1) first thing in them.{warning}"),
    ("numpy-2-old-torch", _outdated("numpy", (2, 0), "torch", (2, 3)),
        "numpy 2 with a torch that was built for numpy 1",
        "torch works with numpy 2 from 2.3 on: pip install 'torch>=2.3', or 'numpy<2'."),
    ("numpy-2-old-sb3", _outdated("numpy", (2, 0), "stable-baselines3", (2, 5)),
        "numpy 2 with a Stable-Baselines3 before 2.5",
        "Its support for numpy 2 came with 2.5: pip install 'stable-baselines3>=2.5', or 'numpy<2'."),
    ("gymnasium-1-old-sb3", _outdated("gymnasium", (1, 0), "stable-baselines3", (2, 4)),
        "Gymnasium 1 with a Stable-Baselines3 before 2.4",
        "Its support for Gymnasium 1 came with 2.4: pip install 'stable-baselines3>=2.4', or 'gymnasium<1'."),
    ("gym-beside-gymnasium", lambda facts: "gymnasium" in _installed(facts) and _installed(facts).get("gym"),
        "gym {value} is installed beside gymnasium",
        "gym is no longer maintained and does not support numpy 2; its spaces are not gymnasium's, so an environment "
        "made of both is refused or misread. Import gymnasium everywhere, and pip uninstall gym."),
    ("overlapping-distributions", _overlapping_distributions,
        "{found}",
        "Files of one lie among those of the other, native libraries too: pip uninstall {names}, then install one."),
    ("musl", lambda facts: facts.get("libc") == "musl",
        "this Python runs on musl (Alpine)",
        "torch has no wheels for musl, and wheels made for glibc do not load here. Use an image with glibc, such as "
        "python:3.12-slim."),
    ("missing-avx", _missing_avx,
        "the processor shows no {value}",
        "Official wheels of TensorFlow and jaxlib need AVX and die by SIGILL without; torch falls back to slow code. "
        "In a virtual machine choose the host's processor type (libvirt: host-passthrough, Proxmox: host)."),
    ("many-threads", _many_threads,
        "{setting}, and {usable:g} processors may be used",
        "Computations then start more threads than can run. They wait for each other, and a container that has used up "
        "its share is paused. Set {variable}={threads}, and 1 in the workers of a vector environment."),
    ("few-descriptors", _few_descriptors,
        "only {value} files may be open at once (ulimit -n)",
        "Every worker of a vector environment takes pipes and every shared tensor a descriptor; beyond the limit they "
        "fail with 'Too many open files'. ulimit -n 4096."),
    ("small-stack", lambda facts: _size_below(facts.get("limits", {}).get("stack"), 4 * _MIB),
        "the stack may grow to {value} (ulimit -s)",
        "Deep recursion in native code, such as a long autograd graph, dies by SIGSEGV beyond it. ulimit -s 8192."),
    ("no-tracing", _no_tracing,
        "kernel.yama.ptrace_scope is {scope}: {who} may look into another process",
        "Crashes and stalls are reported with Python stacks, without native ones. {do}"),
    ("no-stack-tool", _no_stack_tool,
        "neither pystack nor gdb is installed",
        "Native stacks of crashes need one of them: pip install 'pytest-rlstability[native]'."),
    ("32-bit-python", lambda facts: facts.get("python", {}).get("bits", 64) != 64,
        "this Python has 32 bits",
        "A process can use at most 4 GiB, and torch has no wheels for it. Install a 64-bit Python."),
    ("debug-python", lambda facts: facts.get("python", {}).get("debug"),
        "this Python was built for debugging (--with-pydebug)",
        "It aborts where a release build goes on, which is good for finding faults. It is slow, and few libraries have "
        "wheels for it. Do not measure times with it."),
    ("free-threaded-python", lambda facts: facts.get("python", {}).get("free_threaded"),
        "this Python was built without the GIL",
        "An extension that does not declare support for it turns the GIL on again with a RuntimeWarning. "
        "PYTHON_GIL=1 does so from the start: run once with it to see whether a crash depends on that."),
    ("preloaded-library", lambda facts: _variable(facts, "LD_PRELOAD"),
        "LD_PRELOAD={value}",
        "It is part of every process here, and of every crash. If a step fails, run the doctor once without it."),
)  # fmt: skip
"""Name, function, what was found, what to do. The function gets the facts. It returns the values for the placeholders
in both texts (one that is not a mapping is ``{value}``), and something false if the combination is not present."""
