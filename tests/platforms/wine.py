"""Runs the tests that need no Linux with a Windows CPython under Wine: ``python tests/platforms/wine.py [options]``.

The Python is assembled once in ``.tox/windows-python``, or where ``RLSTABILITY_WINE`` says. That needs ``wine64`` and
``x86_64-w64-mingw32-gcc`` (of Debian: wine, wine64, gcc-mingw-w64-x86-64), and a Python 3.12 to run this file, whose
standard library is copied. Its DLL and extension modules come from the wheel of panda3d, which carries them.

Wine 8 lacks WMI and what psutil asks of a process for its name and its own memory. Memory limits of job objects and
counts of handles and context switches are not there either. It shows the file system of Linux as drive Z, which is
removed, because ``/proc`` would be found. Python starts with pipes only, not with a terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("RLSTABILITY_WINE", ROOT / ".tox" / "windows-python"))
DRIVE = HOME / "prefix" / "drive_c"
PYTHON, PACKAGES = DRIVE / "py", DRIVE / "py" / "Lib" / "site-packages"
WINE = next((path for path in ("/usr/lib/wine/wine64", shutil.which("wine64") or "") if os.path.exists(path)), "wine")
COMPILER = "x86_64-w64-mingw32-gcc"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("DISPLAY", "PYTHONPATH", "PYTHONHOME")},
    "WINEPREFIX": str(HOME / "prefix"),
    "WINEDEBUG": "-all",
    "WINEDLLOVERRIDES": "mscoree,mshtml=;winemenubuilder.exe,winedbg.exe=d",
}
WHEELS = ["pytest", "pytest-timeout", "pytest-xdist", "psutil", "colorama"]
FOR_WINDOWS = ["--platform", "win_amd64", "--python-version", "3.12", "--only-binary", ":all:"]
STARTER = """
#include <windows.h>
int wmain(int argc, wchar_t **argv) {
    int (*run)(int, wchar_t **) = (void *)GetProcAddress(LoadLibraryW(L"python312.dll"), "Py_Main");
    return run ? run(argc, argv) : 127;
}
"""
PSUTIL = {
    "exe = cext.proc_exe(self.pid)": 'exe = (self.cmdline() or ["?"])[0]',
    "uss = cext.proc_memory_uss(self.pid)": "uss = basic_mem.rss // 4096",
}


def assemble() -> None:
    """Put a Windows Python together, with pytest."""
    if sys.version_info[:2] != (3, 12):
        sys.exit("assemble it with Python 3.12: its standard library has to fit the DLL")
    if not (shutil.which(COMPILER) and shutil.which(WINE)):
        sys.exit(f"{COMPILER} and wine64 are needed (Debian: wine wine64 gcc-mingw-w64-x86-64)")
    shutil.rmtree(HOME, ignore_errors=True)
    (PYTHON / "DLLs").mkdir(parents=True)
    for arguments in (["wineboot", "-i"], ["reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"]):
        _run([WINE, *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    (HOME / "prefix" / "dosdevices" / "z:").unlink(missing_ok=True)
    _pip("download", "--no-deps", "-d", str(HOME / "wheels"), "panda3d")
    _unpack(next((HOME / "wheels").glob("panda3d-*.whl")))
    left_out = shutil.ignore_patterns("site-packages", "test", "lib-dynload", "__pycache__")
    shutil.copytree(sysconfig.get_path("stdlib"), PYTHON / "Lib", ignore=left_out)
    _compile()
    _pip("install", "--target", str(PACKAGES), *WHEELS)
    windows = PACKAGES / "psutil" / "_pswindows.py"
    text = windows.read_text()
    for before, after in PSUTIL.items():
        text = text.replace(before, after)
    windows.write_text(text)


def _unpack(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            folder, _, file = name.rpartition("/")
            if folder == "deploy_libs" and re.fullmatch(
                r"python312\.dll|VCRUNTIME.*|lib.*\.dll|sqlite3\.dll|zlib1\.dll", file
            ):
                (PYTHON / file).write_bytes(archive.read(name))
            elif folder == "deploy_libs" and file.endswith(".pyd") and file not in ("_wmi.pyd", "_tkinter.pyd"):
                (PYTHON / "DLLs" / file).write_bytes(archive.read(name))


def _compile() -> None:
    """``python.exe``, and the ``python3.dll`` that extension modules of the stable ABI want: all of it is in
    ``python312.dll``."""
    source, stub, exports = HOME / "python.c", HOME / "stub.c", HOME / "python3.def"
    source.write_text(STARTER)
    _run([COMPILER, "-municode", "-o", str(PYTHON / "python.exe"), str(source)])
    listing = subprocess.check_output(["x86_64-w64-mingw32-objdump", "-p", str(PYTHON / "python312.dll")], text=True)
    names = re.findall(r"^\s*\[.*\s(_?Py\S*)$", listing.partition("Name Pointer")[2], re.MULTILINE)
    exports.write_text("EXPORTS\n" + "".join(f"{name} = python312.{name}\n" for name in names))
    stub.write_text("int start(void *a, int b, void *c) { return 1; }\n")
    library = str(PYTHON / "python3.dll")
    _run([COMPILER, "-shared", "-nostdlib", "-e", "start", "-o", library, str(stub), str(exports)])


def install_package() -> None:
    """The package and its tests as they are now."""
    for name, place in (("pytest_rlstability", PACKAGES), ("tests", DRIVE / "repository")):
        shutil.rmtree(place / name, ignore_errors=True)
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", DRIVE / "repository")
    information = PACKAGES / "pytest_rlstability-0.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-rlstability\nVersion: 0\n")
    (information / "entry_points.txt").write_text("[pytest11]\nrlstability = pytest_rlstability.plugin\n")


def main(arguments: list[str]) -> int:
    if not (PYTHON / "python.exe").exists():
        assemble()
    install_package()
    neutral = Path(__file__).with_name("neutral.txt").read_text().split()
    command = [WINE, r"C:\py\python.exe", "-m", "pytest", "-m", "", "-p", "no:cacheprovider", *(arguments or neutral)]
    options = {"env": ENVIRONMENT, "cwd": DRIVE / "repository", "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    return process.returncode


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", arguments[0], "-q", *FOR_WINDOWS, *arguments[1:]])


def _run(command: list[str], **options: object) -> None:
    subprocess.run(command, check=True, **options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
