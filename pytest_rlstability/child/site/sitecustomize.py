"""Runs at the start of every Python process below ``rlstability run``, by way of ``PYTHONPATH``.

It must never break the program: where the package cannot be used, the process is watched from outside only. Another
``sitecustomize`` that this one hides is imported as if it had been found first.
"""

import os
import sys


def _import_hidden() -> None:
    """Import the ``sitecustomize`` that would have been found without this one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _attach() -> None:
    """Connect to the process that watches, unless this Python cannot import the package."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.path.append(package)
    try:
        from pytest_rlstability.child.script import attach

        attach(os.environ)
    except Exception as error:  # an older Python cannot read the package
        if os.environ.get("RLSTABILITY_DEBUG"):
            sys.stderr.write(f"rlstability run: not attached: {error!r}\n")
    finally:
        sys.path.remove(package)


_attach()
_import_hidden()
