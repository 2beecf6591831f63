"""A hook of mkdocs. It makes the pages, which are also read on GitHub, into those of the site.

Links to files outside docs/ lead to the repository. Attributes of examples that only the tests read are removed. A page
that is one link to ../CHANGELOG.md, or another file of the root, becomes that file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_FOR_TESTS = re.compile(r'^(```\w+)((?: \w+="[^"\n]*")+)$', re.MULTILINE)
_INCLUDE = re.compile(r"^\[[^]]*\]\(\.\./([A-Z]+\.md)\)\s*$")
_LINK = re.compile(r"\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Rewrite ``[examples](../examples/ci)`` to an address in the repository; links between pages stay."""
    if include := _INCLUDE.match(markdown):
        markdown = (ROOT / include[1]).read_text(encoding="utf-8").replace("](docs/", "](")
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def rewrite(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        if target.startswith("docs/"):
            return found[0]
        return f"]({config.extra['repository']}/blob/main/{target})"

    return _LINK.sub(rewrite, _FOR_TESTS.sub(_only_the_title, markdown))


def _only_the_title(found: re.Match[str]) -> str:
    title = re.search(r' title="[^"]*"', found[2])
    return found[1] + (title[0] if title else "")
