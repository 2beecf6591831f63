"""Bundles and models that are refused: with one line, exit code 2, and before anything of them is loaded."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pickle
import pydoc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.__main__ import main
from pytest_rlstability.kits.models.audit import Audit
from pytest_rlstability.steps import Outcome

numpy = pytest.importorskip("numpy")

MODEL = Path(__file__).parents[2] / "data" / "models" / "w312sb26_dqn_default.zip"
BUFFER = b"\x80\x04cstable_baselines3.common.buffers\nReplayBuffer\n)\x81."


class LoadedError(Exception):
    """The model would have been loaded now."""


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(step: object) -> None:
        raise LoadedError

    monkeypatch.setattr("pytest_rlstability.kits.models.bundle.run_step", load)


def _arrays() -> bytes:
    stream = io.BytesIO()
    numpy.savez(stream, array=numpy.zeros(2))
    return stream.getvalue()


def bundle(
    path: Path,
    change: Callable[[dict[str, Any]], object] = lambda description: None,
    **files: bytes,
) -> Path:
    """A bundle of a replay buffer, with *files* in the place of its own (``expected__npz=...``)."""
    content = {"observations.npz": _arrays(), "expected.npz": _arrays()}
    content |= {name.replace("__", "."): data for name, data in files.items()}
    if not any(name.startswith("model.") for name in content):
        content["model.pkl"] = BUFFER
    description: dict[str, Any] = {
        "schema": 1,
        "kind": "buffer",
        "algorithm": "",
        "facts": {"class": "ReplayBuffer", "substituted": []},
        "machine": {"python": "3.12.1"},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in content.items()},
    }
    change(description)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", json.dumps(description))
        for name, data in content.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("code", [{}, {"learning_rate": "lambda <lambda>"}])
def test_pack_names_the_code_that_a_model_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: dict[str, str]
) -> None:
    packed = {"algorithm": "stable_baselines3:PPO", "kind": "sb3"}
    monkeypatch.setattr("pytest_rlstability.kits.models.bundle.pack", lambda *paths, **options: packed)
    found = Audit("model.zip", "SB3 model", ("3.11",), {}, (), code=code)
    monkeypatch.setattr("pytest_rlstability.cli.pack.audit", lambda path, trust: found)
    assert main(["pack", "model.zip", "out", "--i-trust-this-file"]) == 0
    said = "holds code, which other Python versions may not run: learning_rate (lambda <lambda>)"
    assert (said in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize("command", ["audit", "pack"])
def test_the_help_speaks_of_closures(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "closure" in capsys.readouterr().out


def test_bytes_that_do_not_belong_to_a_bundle_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle(tmp_path / "b")
    path.write_bytes(path.read_bytes() + b"!")
    assert main(["verify", str(path)]) == 2
    assert "bytes behind its directory" in capsys.readouterr().err
    with zipfile.ZipFile(bundle(path), "a") as archive:
        archive.writestr("more", "")
    assert main(["verify", str(path)]) == 2
    assert "has the file 'more' too many or too few" in capsys.readouterr().err


def test_sound_bundle_comes_to_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(LoadedError):
        main(["verify", str(bundle(tmp_path / "b"))])


WRONG: list[tuple[str, Any]] = [
    *[(key, value) for key in ("facts", "machine", "sha256") for value in ([], None, "text", 1, True)],
    *[("kind", value) for value in ([], {}, None, 1, "other")],
    *[("algorithm", value) for value in ([], None, 1)],
    *[("schema", value) for value in ([], None, 2, "1")],
    ("machine", {"python": []}),
    ("machine", {"python": None}),
    ("sha256", {}),
    ("sha256", {"model.pkl": []}),
    ("facts", {"settings": []}),
    ("facts", {"normalisation": None}),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
def test_wrong_types_are_refused(key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle(tmp_path / "b", lambda description: description.update({key: value}))
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err.startswith("refused: ")


@pytest.mark.parametrize("key", ["schema", "kind", "algorithm", "facts", "machine", "sha256"])
def test_missing_keys_are_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle(tmp_path / "b", lambda description: description.pop(key))
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err.startswith("refused: ")


@pytest.mark.parametrize("text", ["[]", "1", "null", '"text"', "{", "[" * 100_000, '{"schema": 1}'])
def test_description_that_is_no_object_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", text)
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err.startswith("refused: not judged: 'bundle.json' ")


@pytest.mark.parametrize(
    ("algorithm", "sound"),
    [
        ("stable_baselines3:PPO", True),
        ("mine.algorithms:Mine", True),
        ("mine.algorithms:Outer.Mine", False),
        ("other:Mine", False),
        ("os:system", False),
        ("pickle:Unpickler", False),
        ("antigravity:x", False),
        ("mine:os.system", False),
        ("PPO", False),
        ("", False),
        ("a b:c", False),
    ],
)
def test_only_an_algorithm_is_imported(
    algorithm: str, sound: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(description: dict[str, Any]) -> None:
        description.update(kind="sb3", algorithm=algorithm)

    path = bundle(tmp_path / "b", change, model__zip=MODEL.read_bytes())
    if sound:
        with pytest.raises(LoadedError):
            main(["verify", str(path), "--trust", "mine"])
    else:
        assert main(["verify", str(path), "--trust", "mine"]) == 2
        assert "'algorithm' in 'bundle.json'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"expected__npz": b"PK"}, "not a whole zip"),
        ({"observations__npz": _arrays()[:-30]}, "not a whole zip"),
        ({"expected__npz": _arrays().replace(b"NUMPY", b"YPMUN")}, "Bad CRC|no arrays"),
        ({"model__pkl": MODEL.read_bytes()}, "calls a SB3 model a buffer"),
        ({"model__pkl": pickle.dumps(1)}, "calls a pickle a buffer"),
        ({"model__pkl": b"cpydoc\npipepager\n(tR."}, "would run pydoc.pipepager"),
        ({"statistics__pkl": b"K\1."}, "has the file 'statistics.pkl' too many or too few"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    files: dict[str, bytes], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    assert main(["verify", str(bundle(tmp_path / "b", **files))]) == 2
    assert re.search(reason, capsys.readouterr().err)


class Pager:
    def __reduce__(self) -> Any:
        return pydoc.pager, ("text",)


def _with_entry(path: Path, name: str, data: bytes) -> Path:
    """The real model with one more attribute, or one more entry."""
    with zipfile.ZipFile(MODEL) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.namelist():
            content = source.read(entry)
            if entry == "data" and not name.endswith(".pth"):
                settings = {**json.loads(content), name: {":serialized:": base64.b64encode(data).decode()}}
                content = json.dumps(settings).encode()
            target.writestr(entry, content)
        if name.endswith(".pth"):
            target.writestr(name, data)
    return path


@pytest.mark.parametrize("entry", ["extra", "more.pth"])
def test_hostile_pickle_is_refused_wherever_it_would_be_loaded_from(
    entry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = _with_entry(tmp_path / "m.zip", entry, pickle.dumps(Pager())), tmp_path / "out"
    assert main(["pack", str(model), str(out)]) == 2
    assert "pydoc.pager" in capsys.readouterr().err.replace("_pyrepl.pager", "pydoc.pager")
    assert not out.exists()
    with pytest.raises(LoadedError):
        main(["pack", str(_with_entry(tmp_path / "n.zip", entry, pickle.dumps({}))), str(out)])


def _legacy_torch_file(value: bytes) -> bytes:
    return b"".join(pickle.dumps(one, 2) for one in (0x1950A86A20F9469CFC6C, 1001, {})) + value + pickle.dumps(["0"], 2)


@pytest.mark.parametrize(
    ("kind", "value", "sound"),
    [("state_dict", b"}.", True), ("module", b"ccollections\ndeque\n)R.", False)],
    ids=["state dict", "module"],
)
def test_whole_modules_are_not_loaded(
    kind: str, value: bytes, sound: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(description: dict[str, Any]) -> None:
        description.update(kind=kind)

    path = bundle(tmp_path / "b", change, model__pt=_legacy_torch_file(value))
    if sound:
        with pytest.raises(LoadedError):
            main(["verify", str(path)])
    else:
        assert main(["verify", str(path)]) == 2
        assert "a whole pickled module is not loaded" in capsys.readouterr().err
        with pytest.raises(LoadedError):
            main(["verify", str(path), "--i-trust-this-file"])


def test_without_a_lock_the_file_has_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_rlstability.kits.models.lock.missing", lambda: "no Landlock here")
    path = bundle(tmp_path / "b")
    assert main(["verify", str(path)]) == 2
    assert "no Landlock here; with --i-trust-this-file it is loaded" in capsys.readouterr().err
    with pytest.raises(LoadedError):
        main(["verify", str(path), "--i-trust-this-file"])


def test_escape_sequences_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\u202e"
    for model in (_with_entry(tmp_path / "a.zip", hostile, pickle.dumps(Pager())), tmp_path / f"{hostile}.zip"):
        assert main(["audit", str(model)]) == 2
        assert main(["pack", str(model), str(tmp_path / "out")]) == 2
    info = tmp_path / "b.zip"
    with zipfile.ZipFile(info, "w") as archive:
        archive.writestr("data", json.dumps({"path": f"/home/{hostile}"}))
        archive.writestr("system_info.txt", f"- OS: {hostile}\n")
    assert main(["audit", str(info)]) == 0
    printed = capsys.readouterr()
    assert "\\x1b[2J" in printed.out
    assert not {"\x1b", "\u202e"} & set(printed.out + printed.err)


def test_what_a_loaded_model_says_does_not_reach_the_terminal_raw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;title\x07\rok"
    ended = Outcome("x", "raised", error=f"ValueError: {hostile}", stack=f"in load\n{hostile}", stdout=hostile)
    monkeypatch.setattr("pytest_rlstability.kits.models.bundle.run_step", lambda step: ended)
    assert main(["verify", str(bundle(tmp_path / "b"))]) == 1
    assert main(["pack", str(MODEL), str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("FAILED: this machine: ValueError: \\x1b]0;title\\x07\\rok while ")
    assert "\nin load\n\\x1b]0;title" in printed.out
    assert "\nin load\n\\x1b]0;title" in printed.err
    assert not {"\x1b", "\x07", "\r"} & set(printed.out + printed.err)


def test_name_in_a_file_does_not_begin_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function = b"ccloudpickle.cloudpickle\n_make_function\n(ctypes\nCodeType\n(tRtR."
    assert main(["audit", str(_with_entry(tmp_path / "m.zip", "x\nno code found\n", function))]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("code found: ")
    assert "no code found" not in lines
    assert any(line.startswith("x\\nno code found\\n: function") for line in lines)


def test_output_is_a_new_file_beside_its_place_and_then_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_rlstability.kits.models.bundle import _write_bundle

    opened: list[tuple[Path, int]] = []
    real = os.open

    def spy(path: Any, flags: int, *more: Any, **named: Any) -> int:
        opened.append((Path(path), flags))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", spy)
    out = tmp_path / "out"
    out.write_text("kept")
    with pytest.raises(FileNotFoundError):
        _write_bundle(out, {"schema": 1}, {"model.zip": tmp_path / "none"})
    assert out.read_text() == "kept"
    _write_bundle(out, {"schema": 1}, {})
    assert os.listdir(tmp_path) == ["out"]
    assert len(opened) == 2
    for path, flags in opened:
        assert (path.parent, path != out) == (tmp_path, True)
        assert flags & os.O_CREAT
        assert flags & os.O_EXCL


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_link_at_the_output_is_replaced_and_not_followed(tmp_path: Path) -> None:
    from pytest_rlstability.kits.models.bundle import _write_bundle

    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("kept")
    out.symlink_to(victim)
    (tmp_path / "out.part").symlink_to(victim)
    _write_bundle(out, {"schema": 1}, {})
    assert victim.read_text() == "kept"
    assert not out.is_symlink()
    assert zipfile.is_zipfile(out)
