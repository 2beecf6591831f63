"""pytest-rlstability: crashes, leaks and stalls of training code as ordinary test failures.

PYTEST_DONT_REWRITE: a fresh test process imports this package before pytest can rewrite it.
"""

__version__ = "0.1.0"
