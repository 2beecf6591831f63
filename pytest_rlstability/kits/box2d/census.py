"""Counts what is in a world. This happens only when asked, never in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_rlstability.kits.box2d.registry import BODY_TYPES
from pytest_rlstability.reports.exposition import Family

Classify = Callable[[Any], str | None] | Mapping[str, Callable[[Any], bool]]
UNKNOWN = "unknown"
TOTALS = ("bodies", "fixtures", "joints", "contacts")
PREFIX = "box2d "
"""What the name of a count begins with in probes and in samples."""


class Census(dict[str, int]):
    """Counts by name: ``bodies``, ``static``, ``kinematic``, ``dynamic``, the user's own classes, ``unknown`` (the
    other bodies), ``fixtures``, ``joints`` and ``contacts``. ``census()["terrain"]`` and ``census().terrain`` are the
    same; a class without bodies counts 0."""

    def __missing__(self, name: str) -> int:
        return 0

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]


def class_of(body: Any, classify: Classify | None) -> str:
    """The user's class of *body*, or ``unknown``."""
    if classify is None:
        return UNKNOWN
    if isinstance(classify, Mapping):
        return next((name for name, belongs in classify.items() if belongs(body)), UNKNOWN)
    return classify(body) or UNKNOWN


def take_census(world: Any, classify: Classify | None = None) -> Census:
    """Count everything in *world*: ``take_census(world, lambda body: "agent" if body.userData else None)``."""
    names = (*TOTALS, *BODY_TYPES, *(classify if isinstance(classify, Mapping) else ()), UNKNOWN)
    census = Census(dict.fromkeys(names, 0))
    for body in world.bodies:
        census["bodies"] += 1
        census[BODY_TYPES[body.type]] += 1
        census[class_of(body, classify)] += 1
        census["fixtures"] += len(body.fixtures)
    census["joints"] = world.jointCount
    census["contacts"] = world.contactCount
    return census


def metric_of(count: str) -> Family:
    """The metric that shows a count."""
    if count == "worlds" or (count in TOTALS and count != "bodies"):
        return Family(f"rlstability_box2d_{count}", f"Box2D {count}.")
    by = "all" if count == "bodies" else "type" if count in BODY_TYPES else "class"
    text = "Box2D bodies: all, by Box2D's type, and by the test's own classes."
    return Family("rlstability_box2d_bodies", text, {"by": by, "type": "all" if by == "all" else count})
