"""Whether the test that does the damage is named, run after run: ``python benchmarks/blame.py --runs 10``.

Each case of ``blame_corpus`` runs in a pytest of its own. *Named*: the culprit is failed, alone or beside its victim.
*Accused*: a test that did nothing is. Needs gcc; a case whose library is missing is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

CORPUS = Path(__file__).parent / "blame_corpus"
sys.path.insert(0, str(CORPUS))

from cases import CASES, OPTIONS, VICTIMS, source  # noqa: E402


def failed_tests(case: str) -> set[str] | None:
    """The tests that failed, or erred after they had passed; None when the case cannot run here."""
    with tempfile.TemporaryDirectory(prefix="blame-") as name:
        directory = Path(name)
        (directory / "conftest.py").write_text((CORPUS / "conftest.py").read_text())
        (directory / "test_it.py").write_text(source(case))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rl-stability", "--junitxml=j.xml"]
        subprocess.run([*command, *OPTIONS.get(case, [])], cwd=directory, capture_output=True, check=False)
        tests = [*ElementTree.parse(directory / "j.xml").iter("testcase")]
        if len(tests) < 5:
            return None
        return {
            str(test.get("name")) for test in tests if test.find("failure") is not None or len(test.findall("error"))
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="all by default")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    good = True
    for case in arguments.cases or CASES:
        began, named, accused, runs = time.monotonic(), 0, set[str](), 0
        for _ in range(arguments.runs):
            failed = failed_tests(case)
            if failed is None:
                break
            runs += 1
            named += "test_culprit" in failed
            accused |= failed - {"test_culprit", *VICTIMS}
        seconds = (time.monotonic() - began) / max(1, runs)
        print(
            f"{case:40} named {named} of {runs}, accused {sorted(accused) or 'none'}, {seconds:.1f} s a run", flush=True
        )
        good &= named >= 0.9 * runs and not accused
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
