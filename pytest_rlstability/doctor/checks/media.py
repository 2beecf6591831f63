"""Screenshots and shared memory."""

from __future__ import annotations

import io
from typing import Any

from pytest_rlstability.steps.doctor_step import Stage

_SEGMENT = 16 * 2**20


def screenshot_pillow(rl_stage: Stage) -> None:
    from PIL import Image

    picture = Image.effect_noise((160, 144), 50).convert("RGB")
    for kind in ("PNG", "JPEG"):
        with rl_stage(f"write {kind}"):
            buffer = io.BytesIO()
            picture.save(buffer, kind)
        with rl_stage(f"read {kind}"):
            buffer.seek(0)
            assert Image.open(buffer).convert("RGB").size == (160, 144)


def screenshot_opencv(rl_stage: Stage) -> None:
    import cv2
    import numpy

    picture: Any = numpy.zeros((144, 160, 3), numpy.uint8)
    for kind in (".png", ".jpg"):
        with rl_stage(f"write and read {kind}"):
            written, data = cv2.imencode(kind, picture)
            assert written
            assert cv2.imdecode(data, cv2.IMREAD_COLOR).shape == picture.shape
    with rl_stage("resize and colour"):
        cv2.cvtColor(cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2GRAY)


def pygame_surface(rl_stage: Stage) -> None:
    """Without a display, as on a server."""
    import os

    os.environ["SDL_VIDEODRIVER"] = "dummy"
    with rl_stage("import pygame"):
        import pygame
    with rl_stage("draw"):
        pygame.display.init()
        surface = pygame.display.set_mode((160, 144))
        pygame.draw.circle(surface, (255, 0, 0), (80, 72), 20)
        assert len(pygame.image.tobytes(surface, "RGB")) == 160 * 144 * 3
    with rl_stage("quit"):
        pygame.quit()


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
