"""``model_roundtrip`` where it cannot work: said in one line, with what to do."""

from __future__ import annotations

import pytest


def test_without_torch_the_fixture_skips_with_the_line_to_type(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys; sys.modules['torch'] = None")
    pytester.makepyfile("def test_trip(model_roundtrip): model_roundtrip(None, None)")
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * model_roundtrip needs torch: pip install 'pytest-rlstability[[]sb3]'"])


def test_wrong_python_in_the_ini_file_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nrl_roundtrip_pythons = 3.99")
    # Empty stand-ins: the interpreters are looked for before the model is touched.
    pytester.makeconftest("import sys, types; sys.modules['torch'] = sys.modules['numpy'] = types.ModuleType('stub')")
    pytester.makepyfile("def test_trip(model_roundtrip): model_roundtrip(None, None)")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: ini option rl_roundtrip_pythons: no Python answers to '3.99'*"])
