"""What to say where the library that a fixture needs is not installed."""

from __future__ import annotations

import sys

LAST_WHEELS = {"Box2D": (3, 13), "pyboy": (3, 14)}
"""The last Python for which a library has wheels, of those that have none for some Python that is supported. The extras
leave it out after that."""


def not_installed(module: str, extra: str, python: tuple[int, int] = sys.version_info[:2]) -> str:
    """Why a test is skipped, and what helps.

    >>> not_installed("Box2D", "box2d", (3, 13))
    "Box2D is not installed: pip install 'pytest-rlstability[box2d]'"
    >>> not_installed("Box2D", "box2d", (3, 14))
    'Box2D is not installed: there is no wheel of it for Python 3.14, the last one is for 3.13'
    """
    last = LAST_WHEELS.get(module, python)
    if python <= last:
        return f"{module} is not installed: pip install 'pytest-rlstability[{extra}]'"
    here, newest = (".".join(map(str, version)) for version in (python, last))
    return f"{module} is not installed: there is no wheel of it for Python {here}, the last one is for {newest}"
