"""pytest-rlstability: crashes, leaks and stalls of training code as ordinary test failures."""

__version__ = "0.1.0"
