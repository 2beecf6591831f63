"""Every pytest hook of the plugin, and no logic."""

from __future__ import annotations

pytest_plugins: list[str] = [
    "pytest_rlstability.fixtures.proxy",
]
