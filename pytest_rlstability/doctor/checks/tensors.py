"""Tensor operations, shared memory, and computing in a process that was forked after torch has started threads."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from pytest_rlstability.osinfo.fatal_signals import signal_of_exit
from pytest_rlstability.steps.doctor_step import Stage

_FORK_LIMIT = 5.0
_SEGMENT = 16 * 2**20


def operations(rl_stage: Stage) -> None:
    """Matrix product, convolution, gradients, and several Python threads that multiply at once."""
    with rl_stage("import torch"):
        import torch
    with rl_stage("matrix product"):
        assert torch.isfinite(torch.rand(400, 400) @ torch.rand(400, 400)).all()
    with rl_stage("convolution"):
        layer = torch.nn.Conv2d(3, 16, kernel_size=3)
        features = layer(torch.rand(8, 3, 84, 84))
    with rl_stage("backward"):
        features.sum().backward()
        assert torch.isfinite(layer.weight.grad).all()
    with rl_stage("optimizer"):
        torch.optim.Adam(layer.parameters()).step()
    with rl_stage("linear algebra"):
        torch.linalg.svd(torch.rand(64, 64))
    with rl_stage("four threads at once"):
        _in_threads(lambda: torch.rand(400, 400) @ torch.rand(400, 400))


def numpy_operations(rl_stage: Stage) -> None:
    """The same for numpy and its BLAS."""
    import numpy

    with rl_stage("matrix product"):
        assert numpy.isfinite(numpy.ones((400, 400)) @ numpy.ones((400, 400))).all()
    with rl_stage("linear algebra"):
        numpy.linalg.svd(numpy.random.default_rng(0).random((64, 64)))
    with rl_stage("four threads at once"):
        _in_threads(lambda: numpy.ones((400, 400)) @ numpy.ones((400, 400)))


def _in_threads(multiply: Any) -> None:
    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fork_after_threads() -> dict[str, str]:
    """Fork once torch has computed with several threads, and compute in the fork: ``works``, ``hangs`` or a signal.

    With GNU's OpenMP it hangs on every machine. The outcome is a fact for the advice, not a failed step.
    """
    if not hasattr(os, "fork"):
        return {}
    if sys.platform == "win32":
        raise NotImplementedError
    import torch

    torch.set_num_threads(max(2, torch.get_num_threads()))
    matrix = torch.rand(800, 800)
    matrix @ matrix
    child = os.fork()
    if child == 0:
        matrix @ matrix
        os._exit(0)
    deadline = time.monotonic() + _FORK_LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            how = signal_of_exit(code) or f"exit code {code}"
            return {"fork_after_threads": "works" if code == 0 else f"dies ({how})"}
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"fork_after_threads": "hangs"}


def shared_memory(rl_stage: Stage) -> None:
    """Write to every page of a segment of 16 MiB. If there is less shared memory, the kernel sends SIGBUS."""
    from multiprocessing.shared_memory import SharedMemory

    with rl_stage("create"):
        segment = SharedMemory(create=True, size=_SEGMENT)
        segment.unlink()  # no other process needs the name, and a crash must not leave it behind
    with rl_stage("write"):
        assert segment.buf is not None
        segment.buf[::4096] = bytes(_SEGMENT // 4096)
    with rl_stage("close"):
        segment.close()


def shared_tensors(rl_stage: Stage) -> None:
    import torch

    with rl_stage("share"):
        tensor = torch.zeros(2**20).share_memory_()
    with rl_stage("write"):
        tensor += 1
        assert tensor.sum().item() == 2**20
