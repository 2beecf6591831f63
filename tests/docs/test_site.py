"""The site is built strictly, and its pages load nothing from elsewhere. The addresses of the project agree."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from doc_pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY = PROJECT["project"]["urls"]["Repository"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs mkdocs-material: pip install -e '.[docs]'")
    directory = tmp_path_factory.mktemp("site")
    # Any connection fails: a proxy that nothing listens at.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"} | dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


class _Loaded(HTMLParser):
    """The addresses that a browser loads by itself, and the ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.loaded.append(found.get("src") or "")
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.loaded.append(found.get("href") or "")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 35
    outside = []
    for page in pages:
        parser = _Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        outside += [f"{page.name}: {address}" for address in parser.loaded if re.match(r"(https?:)?//", address)]
    styles = [path.read_text(encoding="utf-8") for path in (*site.rglob("*.css"), *site.rglob("*.svg"))]
    outside += [found for text in styles for found in re.findall(r"(?:url\(|@import) *['\"]?https?://[^)'\"]+", text)]
    assert outside == []


def test_examples_are_shown_without_the_attributes_of_the_tests(site: Path) -> None:
    text = (site / "markers.html").read_text(encoding="utf-8")
    assert "test_isolated.py" in text
    assert "expects=" not in text
    assert "```" not in text


def test_links_to_the_repository_are_of_this_one(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert f"{REPOSITORY}/blob/main/examples/ci/README.md" in text


def test_the_changelog_is_a_page(site: Path) -> None:
    assert "0.1.0" in (site / "changelog.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["mkdocs.yml", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"])
def test_files_name_the_same_repository(name: str) -> None:
    found = set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", (ROOT / name).read_text(encoding="utf-8")))
    assert found == {REPOSITORY}


def test_links_of_the_package_index_lead_to_files() -> None:
    """What the build makes of the README's links: absolute, and each leads to a file of the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    raw = REPOSITORY.replace("github.com", "raw.githubusercontent.com")
    prefix = re.compile(rf"{re.escape(REPOSITORY)}/blob/main/|{re.escape(raw)}/main/")
    assert [link for link in links if not prefix.match(link)] == []
    paths = [prefix.sub("", link).partition("#")[0] for link in links]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_version_to_cite_is_this_one() -> None:
    from pytest_rlstability import __version__

    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
