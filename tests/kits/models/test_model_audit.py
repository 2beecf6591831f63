"""The audit: real files written by other Pythons, made-up ones for each rule, hostile ones for each refusal."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_rlstability.__main__ import main
from pytest_rlstability.kits.models.archive import RefusedError, Word
from pytest_rlstability.kits.models.audit import Audit, audit, parse_version
from pytest_rlstability.kits.models.bundle import algorithm_of
from pytest_rlstability.kits.models.judge import Trust

MODELS = Path(__file__).parents[2] / "data" / "models"
PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13)]
THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"


def effects(result: Audit, entry: str) -> list[str]:
    (finding,) = (finding for finding in result.findings if finding.entry == entry)
    return list(finding.effects.values())


def test_user_closure_written_by_3_12() -> None:
    result = audit(MODELS / "w312sb26_ppo_lr.zip", PYTHONS)
    assert effects(result, "learning_rate") == ["raises", "segfaults", "fine", "segfaults"]
    assert effects(result, "clip_range") == ["raises", "segfaults", "fine", "segfaults"]
    assert effects(result, "lr_schedule") == ["rebuilt", "rebuilt", "fine", "rebuilt"]
    learning_rate = result.findings[0]
    assert learning_rate.what == "closure linear_schedule.<locals>.func of __main__"
    assert learning_rate.writer == "3.12"
    assert result.custom_objects == (
        'custom_objects={"learning_rate": linear_schedule(initial_value=1e-05, min_value=1e-06),'
        ' "clip_range": 0.2, "lr_schedule": lambda _: 0.0}'
    )
    assert result.exit_code == 1


def test_user_closure_written_by_3_13() -> None:
    result = audit(MODELS / "w313sb26_ppo_lr.zip", PYTHONS)
    assert effects(result, "learning_rate") == ["raises", "segfaults", "segfaults", "fine"]
    assert {finding.writer for finding in result.findings} == {"3.13"}


def test_default_ppo_of_sb3_2_6_breaks_by_its_clip_range_alone() -> None:
    result = audit(MODELS / "w312sb26_ppo_default.zip", [(3, 11)])
    assert [finding.entry for finding in result.findings if finding.breaks] == ["clip_range"]
    assert "clip_range breaks on Python 3.11" in result.text()
    assert '"clip_range": 0.2' in result.custom_objects


def test_default_dqn_of_sb3_2_6_holds_code_that_nobody_calls() -> None:
    result = audit(MODELS / "w312sb26_dqn_default.zip", PYTHONS)
    assert result.exit_code == 0
    assert {finding.entry for finding in result.code_entries} == {"lr_schedule", "exploration_schedule"}


@pytest.mark.parametrize("name", ["w312sb26_ppo_default", "w312sb26_ppo_lr", "w312sb26_dqn_default"])
def test_where_it_was_written_nothing_breaks_but_it_is_not_portable(name: str) -> None:
    result = audit(MODELS / f"{name}.zip", [(3, 12)])
    assert result.exit_code == 0
    assert "nothing breaks on Python 3.12" in result.text()
    assert "not portable; on other Pythons load with: load(..., custom_objects={" in result.text()


def test_report_says_who_wrote_the_file_and_what_differs_here() -> None:
    result = audit(MODELS / "w312sb26_ppo_lr.zip", [(3, 12)])
    assert result.written_by["Python"] == "3.12.1"
    assert result.written_by["Stable-Baselines3"] == "2.6.0"
    assert any("absolute path /tmp/" in note and note.startswith("learning_rate") for note in result.notes)


def sb3_zip(path: Path, settings: dict[str, Any], python: str = "", **entries: bytes) -> Path:
    """An SB3 zip whose values in bytes are pickles."""
    data = {
        name: {":type:": "?", ":serialized:": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
        for name, value in settings.items()
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(data))
        if python:
            archive.writestr("system_info.txt", f"- OS: Linux\n- Python: {python}\n")
        for name, content in entries.items():
            archive.writestr(name.replace("__", "."), content)
    return path


def _function_pickle(code: str, arguments: int = 18, name: str = "schedule") -> bytes:
    """What cloudpickle writes for a function with this bytecode (in hex)."""
    stream = io.BytesIO()

    def text(value: str) -> bytes:
        return b"\x8c" + bytes([len(value)]) + value.encode()

    body = bytes.fromhex(code)
    stream.write(b"\x80\x04ccloudpickle.cloudpickle\n_make_function\n(ctypes\nCodeType\n(")
    stream.write(b"K\x01K\x00K\x00K\x01K\x02K\x03C" + bytes([len(body)]) + body + b"N\x85))")
    stream.write(text("/home/me/train.py") + text(name))
    stream.write((text(name) if arguments == 18 else b"") + b"K\x01C\x00" + b"C\x00" * (arguments == 18) + b"))tR")
    stream.write(b"}NNNtR.")
    return stream.getvalue()


MULTIPLY = "97007c0064017a0500005300"  # progress * 3e-4: the same bytes in 3.11 and 3.12
MULTIPLY_3_10 = "7c0064011400530 0".replace(" ", "")


def test_code_that_happens_to_be_the_same_is_not_called_a_segfault(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", {"learning_rate": _function_pickle(MULTIPLY)}, python="3.11.7")
    result = audit(path, PYTHONS)
    assert effects(result, "learning_rate") == ["raises", "fine", "foreign", "segfaults"]
    assert result.findings[0].writer == "3.11"
    assert audit(path, [(3, 12)]).exit_code == 1


def test_without_system_info_the_bytes_tell_the_writer(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", {"learning_rate": _function_pickle(MULTIPLY)})
    result = audit(path, PYTHONS)
    assert result.findings[0].writer == "3.11 or 3.12"
    assert effects(result, "learning_rate") == ["raises", "fine", "fine", "segfaults"]


def test_bytes_are_believed_when_system_info_disagrees(tmp_path: Path) -> None:
    """A model saved again by another Python keeps the function it was given."""
    pickled = _function_pickle(MULTIPLY_3_10, arguments=16)
    path = sb3_zip(tmp_path / "m.zip", {"learning_rate": pickled}, python="3.12.1")
    result = audit(path, PYTHONS)
    assert result.findings[0].writer == "3.10"
    assert effects(result, "learning_rate") == ["fine", "raises", "raises", "raises"]


def test_newer_python_than_the_table_knows(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", {"learning_rate": _function_pickle("8000ff00")}, python="3.16.1")
    result = audit(path, [(3, 15), (3, 16)])
    assert result.findings[0].writer == "3.16"
    assert effects(result, "learning_rate") == ["segfaults", "fine"]


def test_code_in_any_entry_is_found(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", {"policy_kwargs": _function_pickle(MULTIPLY)}, python="3.11.7")
    result = audit(path, [(3, 13)])
    assert result.custom_objects == 'custom_objects={"policy_kwargs": your_policy_kwargs}'


def test_plain_settings_are_clean(tmp_path: Path) -> None:
    path = sb3_zip(tmp_path / "m.zip", {"gamma": 0.99, "ep_info_buffer": pickle.dumps([1, 2])}, python="3.12.1")
    result = audit(path, PYTHONS)
    assert (result.findings, result.exit_code, result.notes) == ((), 0, ())


def test_reference_to_main_breaks_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "stats.pkl"
    path.write_bytes(b"\x80\x04c__main__\nClip\n)\x81.")
    result = audit(path, trust=Trust(("__main__",)))
    assert result.exit_code == 1
    assert "__main__.Clip" in result.text()
    with pytest.raises(RefusedError, match=r"would run __main__\.Clip"):
        audit(path)


def test_paths_of_another_operating_system(tmp_path: Path) -> None:
    foreign, own = ("PosixPath", "WindowsPath") if os.name == "nt" else ("WindowsPath", "PosixPath")
    for name, code in ((foreign, 1), (own, 0)):
        path = tmp_path / f"{name}.pkl"
        path.write_bytes(b"\x80\x04cpathlib\n" + name.encode() + b"\n(X\x01\x00\x00\x00xtR.")
        assert audit(path).exit_code == code


@pytest.mark.parametrize(("installed", "code"), [("1.26.4", 1), ("2.4.0", 0), ("", 0)])
@pytest.mark.parametrize(
    "pickled",
    [
        b"cnumpy._core.numeric\n_frombuffer\n(C\x01acnumpy\ndtype\n(X\x02\0\0\0u1K\0K\1tRK\1\x85X\1\0\0\0CtR.",
        b"cnumpy.random._pickle\n__bit_generator_ctor\n(cnumpy.random._pcg64\nPCG64\ntR.",
    ],
    ids=["array", "bit generator"],
)
def test_values_of_numpy_2_raise_under_numpy_1(
    pickled: bytes, installed: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_rlstability.kits.models.audit._installed", lambda distribution: installed)
    path = sb3_zip(tmp_path / "m.zip", {"observation_space": b"\x80\x04" + pickled})
    assert audit(path).exit_code == code


def _torch_zip(device: bytes) -> bytes:
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X" + struct.pack("<I", len(device))
    data = (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + device
        + b"K\x04tQK\x00K\x04\x85K\x01\x85\x89NtRs."
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/data/0", b"\0" * 16)
    return stream.getvalue()


@pytest.mark.parametrize(("device", "noted"), [(b"cuda:0", True), (b"cpu", False)])
def test_devices_of_tensors_are_noted(tmp_path: Path, device: bytes, noted: bool) -> None:
    plain = tmp_path / "w.pt"
    plain.write_bytes(_torch_zip(device))
    inside = sb3_zip(tmp_path / "m.zip", {}, policy__pth=_torch_zip(device))
    for path, advice in ((plain, "map_location='cpu'"), (inside, "device='cpu'")):
        notes = [note for note in audit(path).notes if "device cuda:0" in note and advice in note]
        assert bool(notes) is noted


# Hostile and broken files: each is refused with one line, exit code 2, and nothing of it is run.


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("data", "w", force_zip64=True) as entry:
            for _ in range(100):
                entry.write(b"\0" * 2**20)


def _nested_bomb(path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (32 * 2**20))
    sb3_zip(path, {}, policy__pth=inner.getvalue())


def _zip_with(name: str) -> Any:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", "{}")
            archive.writestr(name, b"x")

    return write


def _lying_size(path: Path) -> None:
    """The directory says a few bytes, the entry unpacks to a megabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b" " * 2**20)
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 16)
    path.write_bytes(content)


def _encrypted(path: Path) -> None:
    _zip_with("x")(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


class Shell:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def _old_torch_file(fourth: bytes) -> bytes:
    """What ``torch.save`` wrote before it made zips: five pickles, the model is the fourth; here without weights."""
    first = b"".join(map(pickle.dumps, [0x1950A86A20F9469CFC6C, 1001, {}]))
    return first + fourth + pickle.dumps([])


def _tar(path: Path) -> None:
    """torch.load takes it for a tar, everyone else for the pickle of a number."""
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("K\x01."))


HOSTILE: dict[str, tuple[Any, str]] = {
    "bomb": (_bomb, "a zip bomb"),
    "nested bomb": (_nested_bomb, "a zip bomb"),
    "lying size": (_lying_size, "not a whole zip"),
    "climbing name": (_zip_with("../../etc/passwd"), "outside the directory"),
    "absolute name": (_zip_with("/etc/passwd"), "outside the directory"),
    "windows name": (_zip_with("C:\\evil"), "outside the directory"),
    "encrypted": (_encrypted, "encrypted"),
    "no model": (lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)), "neither an SB3 model"),
    "cut": (lambda path: path.write_bytes((MODELS / "w312sb26_ppo_lr.zip").read_bytes()[:70000]), "not a whole zip"),
    "text": (lambda path: path.write_text("hello"), "neither a zip nor a pickle"),
    "tar": (_tar, "is a tar file"),
    "empty": (lambda path: path.write_bytes(b""), "neither a zip nor a pickle"),
    "shell in data": (lambda path: sb3_zip(path, {"gamma": pickle.dumps(Shell())}), "'gamma' .* would run os.system"),
    "shell in pickle": (lambda path: path.write_bytes(pickle.dumps(Shell())), "would run os.system"),
    "shell in weights": (lambda path: sb3_zip(path, {}, policy__pth=pickle.dumps(Shell())), "would run os.system"),
    "later pickle": (lambda path: path.write_bytes(b"K\1." + pickle.dumps(Shell())), "other bytes behind it"),
    "bytes behind old weights": (
        lambda path: path.write_bytes(_old_torch_file(pickle.dumps({})) + b"!"),
        "more or fewer bytes of weights",
    ),
    "setting twice": (lambda path: _data(path, b'{"a": 1, "a": 2}'), "has a setting twice"),
    "other encoding": (lambda path: _data(path, "{}".encode("utf-16")), "not JSON"),
    "shell in an old torch file": (
        lambda path: path.write_bytes(_old_torch_file(pickle.dumps(Shell()))),
        "would run os.system",
    ),
    "shell in old weights": (
        lambda path: sb3_zip(path, {}, policy__pth=_old_torch_file(pickle.dumps(Shell()))),
        "entry 'policy.pth' would run os.system",
    ),
    "eval": (lambda path: path.write_bytes(b"cbuiltins\neval\n(S'1'\ntR."), "would run builtins.eval"),
    "deep json": (lambda path: _data(path, b"[" * 200_000), "too deeply|not JSON"),
    "list": (lambda path: _data(path, b"[1]"), "not a JSON object"),
    "base64": (lambda path: _data(path, b'{"a": {":serialized:": "*"}}'), "'a' in entry 'data' is not base64"),
    "cut pickle": (lambda path: sb3_zip(path, {"a": pickle.dumps([1, 2])[:-2]}), "not a whole pickle"),
}


def test_old_torch_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(_old_torch_file(pickle.dumps({"w": 1.5})))
    assert (audit(path).kind, audit(path).exit_code) == ("torch file", 0)
    inside = sb3_zip(tmp_path / "m.zip", {}, policy__pth=path.read_bytes())
    assert audit(inside).exit_code == 0


def _data(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", data)


@pytest.mark.parametrize("name", HOSTILE)
def test_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.zip"
    write, reason = HOSTILE[name]
    write(path)
    with pytest.raises(RefusedError, match=reason):
        audit(path)
    assert main(["audit", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(("refused: code found: ", "refused: not judged: "))
    assert "safe" not in said
    assert not (tmp_path / "pwned").exists()


def test_entry_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("data", '{"a": 1}')
    with pytest.raises(RefusedError, match="twice"):
        audit(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot read"):
        audit(tmp_path / "none.zip")


# The command.


@pytest.mark.parametrize(
    ("name", "pythons", "code"),
    [
        ("w312sb26_ppo_lr", ["3.12"], 0),
        ("w312sb26_ppo_lr", ["3.12", "3.11"], 1),
        ("w312sb26_ppo_default", ["3.13"], 1),
        ("w312sb26_dqn_default", ["3.13"], 0),
        ("w313sb26_ppo_lr", ["3.12"], 1),
        ("w313sb26_ppo_lr", ["3.13.2"], 0),
    ],
)
def test_exit_codes(name: str, pythons: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(MODELS / f"{name}.zip"), "--python", *pythons]) == code
    said = capsys.readouterr().out
    assert said.startswith(f"{name}.zip: SB3 model; ")
    assert said.splitlines()[1].startswith("code found: ")
    assert "safe" not in said


def test_there_is_no_word_for_harmless() -> None:
    assert get_args(Word) == ("no code found", "code found", "not judged")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(MODELS / "w312sb26_ppo_lr.zip"), "--json", "--python", "3.10"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["breaks"] is True
    assert data["portable"] is False
    assert data["findings"][0]["effects"] == {"3.10": "raises"}
    assert main(["audit", __file__, "--json"]) == 2
    assert "refused" in json.loads(capsys.readouterr().out)


def test_default_target_is_this_python(capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", str(MODELS / "w312sb26_dqn_default.zip")])
    assert f"on Python {THIS}" in capsys.readouterr().out


def test_wrong_version_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["audit", "model.zip", "--python", "three"])
    assert error.value.code == 2
    assert "'three' is not a Python version such as 3.12" in capsys.readouterr().err


def test_options_may_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(MODELS / "w312sb26_ppo_lr.zip")
    assert main(["audit", "--python", "3.12", path]) == 0
    assert main(["audit", "--python", "3.12", "--python", "3.13", path]) == 1
    assert main(["audit", "--json", path, "--python", "3.13"]) == 1


def test_no_model_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["audit"])
    assert error.value.code == 2
    assert "model" in capsys.readouterr().err


def test_versions() -> None:
    assert parse_version("3.12") == parse_version("3.12.1") == (3, 12)
    with pytest.raises(ValueError, match="not a Python version"):
        parse_version("12")


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({"clip_range": 0.2}, "stable_baselines3:PPO"),
        ({"n_steps": 5, "gae_lambda": 1.0}, "stable_baselines3:A2C"),
        ({"policy_class": {"__module__": "stable_baselines3.dqn.policies"}}, "stable_baselines3:DQN"),
        ({"policy_class": {"__module__": "sb3_contrib.common.maskable.policies"}}, "sb3_contrib:MaskablePPO"),
        ({"gamma": 1}, None),
    ],
)  # fmt: skip
def test_algorithm_is_told_from_the_settings(settings: dict[str, Any], algorithm: str | None) -> None:
    assert algorithm_of(settings) == algorithm
