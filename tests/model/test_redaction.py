"""What looks like a credential is not shown; what a person needs to recognize a command is."""

from __future__ import annotations

import pytest

from pytest_rlstability.model.redaction import redacted


@pytest.mark.parametrize(
    "words",
    [
        ["--password=HUNTER"], ["--password", "HUNTER"], ["--db-password", "HUNTER"], ["-token", "HUNTER"],
        ["--api_key=HUNTER"], ["WANDB_API_KEY=HUNTER"], ["AWS_SECRET_ACCESS_KEY=HUNTER"], ["--auth=HUNTER"],
        ["-H", "Authorization: Bearer HUNTER"], ["postgres://me:HUNTER@host/db"], ["--url=https://me:HUNTER@host"],
        ["ghp_HUNTERabcdefghijklmnop"], ["sk-HUNTERabcdefghijklm1"], ["hf_HUNTERabcdefghijkl"],
        ["eyJHUNTERhbGciOiJIUzI1.eyJzdWI.x"], ["HUNTER0123456789abcdefABCDEF0123456789"],
        ["-c", "connect(password='HUNTER')"], ["-c", 'login({"token": "HUNTER"})'], ["http://h/?token=HUNTER&step=1"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_credential_is_hidden(words):
    shown = " ".join(redacted(["python", *words]))
    assert "HUNTER" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "word",
    [
        "train.py", "--seed=7", "--total-timesteps=1000000", "/usr/lib/python3.11/site-packages/gymnasium/envs/box.py",
        "import time; time.sleep(600)", "tests/test_env.py::test_step[fast-1]", "--passes", "--authors=all",
        "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)", "--tokenizer=bert",
        "http://localhost:8080/step", "test_a_very_long_name_of_a_test_with_many_words_in_it", "--max-tokens=9",
        "--rl-stability", "--multiprocessing-fork", "--bypass=1",
    ],
)  # fmt: skip
def test_an_ordinary_word_is_shown(word):
    assert redacted(["python", word, "next"]) == ["python", word, "next"]
