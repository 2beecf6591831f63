"""Box2D under test: who made what, what is left of it, and no touching of what is gone."""

from __future__ import annotations
