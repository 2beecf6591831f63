"""What in a saved model will not survive the trip to another Python or machine; nothing is unpickled."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pytest_rlstability.kits.models import bytecode
from pytest_rlstability.kits.models.archive import Word, as_text
from pytest_rlstability.kits.models.bytecode import Version
from pytest_rlstability.kits.models.carried import Carried, CodeObject, carried_by
from pytest_rlstability.kits.models.contents import Contents, Part, read_contents
from pytest_rlstability.kits.models.judge import NOBODY, Trust
from pytest_rlstability.kits.models.pickles import items, walk
from pytest_rlstability.kits.models.worker import REBUILT

Effect = Literal["fine", "rebuilt", "foreign", "raises", "segfaults"]

_SAID: Mapping[Effect, str] = {
    "fine": "fine",
    "rebuilt": "fine: made again at load, never called",
    "foreign": "another Python's code; compatible by accident, not by contract",
    "raises": "raises",
    "segfaults": "segfaults when called (SIGSEGV, at times SystemError, TypeError or a silently wrong value)",
}
_ABSOLUTE_PATH = re.compile(
    r"(/(?:home|root|tmp|Users|mnt|opt|var|data|usr|workspace|content)/|[A-Za-z]:\\)[^\0\n]{0,300}"
)
_MAX_PATHS = 8
_DEVICE = re.compile(r"(cuda|mps|xpu|hip|npu)(:\d+)?")
_DISTRIBUTIONS = {
    "Stable-Baselines3": "stable_baselines3", "PyTorch": "torch", "Numpy": "numpy", "Cloudpickle": "cloudpickle",
    "Gymnasium": "gymnasium",
}  # fmt: skip
_USUAL = {*_DISTRIBUTIONS.values(), "sb3_contrib", "gym", "copy_reg", "__main__", "__mp_main__", "__builtin__"}
_FOREIGN_PATH = "PosixPath" if os.name == "nt" else "WindowsPath"
# Numpy 2 names its private core, and pickles bit generators by class where numpy 1 used their names.
_OF_NUMPY_2 = re.compile(r"numpy\._core|numpy\.random\._(pcg64|mt19937|philox|sfc64)$")


@dataclass(frozen=True)
class Finding:
    """One entry that holds something which does not travel, and what it does on each target Python."""

    entry: str
    what: str
    writer: str
    effects: Mapping[str, Effect]
    reason: str = ""
    replacement: str = ""
    holds_code: bool = False

    @property
    def breaks(self) -> bool:
        return any(map(self.breaks_on, self.effects))

    def breaks_on(self, target: str) -> bool:
        return self.effects.get(target, "fine") not in ("fine", "rebuilt")

    def lines(self) -> Iterator[str]:
        written = f", written by Python {self.writer}" if self.writer else ""
        yield f"{self.entry}: {self.what}{written}"
        for target, effect in self.effects.items():
            reason = f" {self.reason}" if effect == "raises" and self.reason else ""
            yield f"  on Python {target}: {_SAID[effect]}{reason}"


@dataclass(frozen=True)
class Audit:
    """The result of `audit`: findings that matter on some Python, notes that may matter on some machine."""

    path: str
    kind: str
    targets: tuple[str, ...]
    written_by: Mapping[str, str]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> Word:
        return "code found" if self.code else "no code found"

    @property
    def exit_code(self) -> int:
        return int(any(finding.breaks for finding in self.findings))

    @property
    def code_entries(self) -> tuple[Finding, ...]:
        """The findings that hold code: not portable, whether or not a target is named that they break on."""
        return tuple(finding for finding in self.findings if finding.holds_code)

    @property
    def custom_objects(self) -> str:
        """The argument of ``load()`` that keeps every entry with code from being read, or ``""``."""
        values = [f'"{one.entry}": {one.replacement}' for one in self.code_entries if one.replacement]
        return "custom_objects={" + ", ".join(values) + "}" if values else ""

    def text(self) -> str:
        code = ", ".join(f"{entry} ({what})" for entry, what in self.code.items())
        lines = [f"{self.path}: {self.kind}; {self._verdict()}", f"{self.word}: {code}" if code else self.word]
        if self.written_by:
            lines.append("written by: " + ", ".join(f"{name} {version}" for name, version in self.written_by.items()))
        for finding in self.findings:
            lines += ["", *finding.lines()]
        if self.custom_objects:
            why = "avoid it with" if self.exit_code else "not portable; on other Pythons load with"
            lines += ["", f"{why}: load(..., {self.custom_objects})"]
        if self.notes:
            lines += ["", *(f"note: {note}" for note in self.notes)]
        return as_text(*lines)

    def _verdict(self) -> str:
        broken = [finding for finding in self.findings if finding.breaks]
        if not broken:
            return f"nothing breaks on Python {', '.join(self.targets)}"
        entries = ", ".join(dict.fromkeys(finding.entry for finding in broken))
        where = [target for target in self.targets if any(finding.breaks_on(target) for finding in broken)]
        return f"{entries} {'breaks' if len(broken) == 1 else 'break'} on Python {', '.join(where)}"

    def to_dict(self) -> dict[str, object]:
        data = asdict(self)
        for entry, finding in zip(data["findings"], self.findings, strict=True):
            entry["breaks"] = finding.breaks
        return {
            **data,
            "verdict": self.word,
            "breaks": bool(self.exit_code),
            "portable": not self.code_entries,
            "custom_objects": self.custom_objects,
        }


def audit(path: Path, targets: Sequence[Version] = (), trust: Trust = NOBODY) -> Audit:
    """Read *path* without loading it and say what breaks on *targets*; `RefusedError` if it should not be read."""
    return audit_contents(path.name, read_contents(path, trust), targets)


def audit_contents(name: str, contents: Contents, targets: Sequence[Version] = ()) -> Audit:
    """What `audit` says of a file that has been read already."""
    chosen = tuple(dict.fromkeys(targets)) or (sys.version_info[:2],)
    findings: list[Finding] = []
    for part in contents.parts:
        findings += _code_findings(part, contents, chosen)
        findings += _reference_findings(part, chosen)
    return Audit(
        path=name,
        kind=contents.kind,
        targets=tuple(map(spoken, chosen)),
        written_by=contents.written_by,
        findings=tuple(findings),
        notes=(*_device_notes(contents), *_path_notes(contents), *_library_notes(contents)),
        code={part.entry: code_in(part) for part in contents.parts if part.code},
    )


def code_in(part: Part) -> str:
    """What can be called in *part*: the function or class it carries, else what makes it callable."""
    carried = carried_by(part.reading)
    return str(carried[0]) if carried else ", ".join(part.code)


def spoken(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def parse_version(text: str) -> Version:
    """``"3.12"`` or ``"3.12.1"`` as a version; ValueError for anything else."""
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+\w*)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a Python version such as 3.12")
    return int(match[1]), int(match[2])


def _code_findings(part: Part, contents: Contents, targets: Sequence[Version]) -> Iterator[Finding]:
    carried = carried_by(part.reading)
    if not carried:
        return
    outer, *inner = carried
    of = f" of {outer.module}" if outer.module else ""
    around = f", around {', '.join(one.name for one in inner[:3])}" if inner else ""
    # A class may carry no code of its own (only annotations); it is still built from its parts, on any Python.
    codes = tuple(dict.fromkeys(code for one in carried for code in one.codes))
    writer = _writer(codes, contents.written_by.get("Python", ""))
    yield Finding(
        entry=part.entry,
        what=f"{outer}{of}{around}",
        writer=" or ".join(map(spoken, writer)) or _unknown_writer(codes),
        effects={spoken(target): _effect(codes, writer, target, part.attribute) for target in targets},
        reason="TypeError when loaded" + ("; SB3 then warns and keeps its own default" if part.attribute else ""),
        replacement=_replacement(part.attribute, carried) if part.attribute else "",
        holds_code=True,
    )


def _replacement(attribute: str, carried: tuple[Carried, ...]) -> str:
    """Python text for a value that can stand in ``custom_objects``: a constant, a call of a factory, or a blank."""
    if attribute in REBUILT:
        return "lambda _: 0.0"
    innermost = carried[-1]
    if innermost.module == "stable_baselines3.common.utils" and innermost.name == "constant_fn.<locals>.func":
        return repr(innermost.cells.get("val"))
    factory, separator, _ = innermost.name.partition(".<locals>.")
    if separator and innermost.kind != "class" and innermost.cells and "<" not in factory:
        return f"{factory}({', '.join(f'{name}={value!r}' for name, value in innermost.cells.items())})"
    return f"your_{attribute}"


def _writer(codes: Sequence[CodeObject], saved_by: str) -> tuple[Version, ...]:
    """The Pythons that could have compiled all of *codes*; the one the file names, if it is among them."""
    common = set(codes[0].writers).intersection(*(code.writers for code in codes)) if codes else set()
    try:
        named = parse_version(saved_by)
    except ValueError:
        named = (0, 0)
    if named in common or (codes and not common and bytecode.takes_arguments(named, codes[0].argument_count)):
        return (named,)
    return tuple(sorted(common))


def _unknown_writer(codes: Sequence[CodeObject]) -> str:
    spans = {bytecode.CODE_ARGUMENTS.get(code.argument_count, bytecode.NEVER) for code in codes}
    first, last = spans.pop() if len(spans) == 1 else bytecode.NEVER
    if first > last:
        return "unknown"
    return f"{spoken(first)} or later" if last[1] == 99 else f"{spoken(first)}-{spoken(last)}"


def _effect(codes: Sequence[CodeObject], writer: tuple[Version, ...], target: Version, attribute: str) -> Effect:
    if not codes or target in writer:
        return "fine"
    if attribute in REBUILT:
        return "rebuilt"
    if all(target in code.writers for code in codes):
        return "foreign"
    if all(bytecode.takes_arguments(target, code.argument_count) for code in codes):
        return "segfaults"
    return "raises"


def _reference_findings(part: Part, targets: Sequence[Version]) -> Iterator[Finding]:
    everywhere: dict[str, Effect] = {spoken(target): "raises" for target in targets}
    here: dict[str, Effect] = {name: "raises" for name in everywhere if name == spoken(sys.version_info[:2])}
    numpy = _installed("numpy")
    for name in dict.fromkeys(part.reading.names):
        if name.module in ("__main__", "__mp_main__"):
            reason = "AttributeError anywhere but in the script that wrote it; move it to a module"
            yield Finding(part.entry, f"refers to {name}", "", everywhere, reason)
        elif name.module.startswith("pathlib") and name.name == _FOREIGN_PATH and here:
            yield Finding(part.entry, f"refers to {name}", "", here, "on this operating system")
    if here and numpy.startswith("1.") and any(_OF_NUMPY_2.match(name.module) for name in part.reading.names):
        reason = f"when loaded: written by numpy 2, {numpy} is installed here"
        yield Finding(part.entry, "values of numpy 2", "", here, reason)


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _device_notes(contents: Contents) -> Iterator[str]:
    how = "load(..., device='cpu')" if contents.kind == "SB3 model" else "torch.load(..., map_location='cpu')"
    for part in contents.parts:
        values = [value for external in part.reading.externals for value in items(external.reference)]
        for device in sorted({value for value in values if isinstance(value, str) and _DEVICE.fullmatch(value)}):
            yield f"{part.where} holds tensors of device {device}; on a machine without it use {how}"


def _path_notes(contents: Contents) -> Iterator[str]:
    found: dict[str, str] = {}
    for entry, value in contents.settings.items():
        if isinstance(value, str) and _ABSOLUTE_PATH.match(value):
            found.setdefault(value, entry)
    for part in contents.parts:
        for node in walk(part.reading.value):
            if isinstance(node, str) and _ABSOLUTE_PATH.fullmatch(node):
                found.setdefault(node, part.entry)
    for path, entry in list(found.items())[:_MAX_PATHS]:
        yield f"{entry} holds the absolute path {path}"
    if len(found) > _MAX_PATHS:
        yield f"and {len(found) - _MAX_PATHS} more absolute paths"


def _library_notes(contents: Contents) -> Iterator[str]:
    for library, distribution in _DISTRIBUTIONS.items():
        wrote, here = contents.written_by.get(library, ""), _installed(distribution)
        if wrote and here and wrote.split(".")[:2] != here.split(".")[:2]:
            yield f"written with {library} {wrote}; {here} is installed here"
    needed = {name.module.partition(".")[0] for part in contents.parts for name in part.reading.names}
    others = needed - _USUAL - sys.stdlib_module_names
    if others:
        yield f"needs importable on the target: {', '.join(sorted(others))}"
