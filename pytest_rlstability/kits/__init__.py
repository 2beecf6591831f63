"""What tests ask for beyond the core: emulators, physics, models, proxies, vector envs, locks, fuzzing.

Each kit has one module that is its pytest plugin. It adds to the core only by the hooks that other packages have too.
"""

PLUGINS = (
    "pytest_rlstability.kits.locks.plugin",
    "pytest_rlstability.kits.proxy.plugin",
    "pytest_rlstability.kits.models.plugin",
    "pytest_rlstability.kits.vec_env.plugin",
    "pytest_rlstability.kits.pyboy.plugin",
    "pytest_rlstability.kits.box2d.plugin",
    "pytest_rlstability.kits.fuzz.plugin",
)
