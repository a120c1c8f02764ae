"""Makes a site from the pages of the repository; mkdocs calls it, see ``mkdocs.yml``.

The pages are written for readers of the repository: they link to examples, tests and sources, and the README is the
first page. The README becomes the site's front page. A file outside ``docs/`` that a page links to becomes part of the
site, below ``repository/``. A link to a folder becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)", re.DOTALL)
_FENCE = re.compile(r"(^ *```.*?^ *```[ ]*$)", re.DOTALL | re.MULTILINE)
_MOVED = {"formats/index.md": "formats/index-file.md"}
"""A page named ``index.md`` would be the page of its folder and hide the README, which is the front page."""


def on_files(files: Any, config: Any) -> Any:
    """The front page, and the files outside ``docs/`` to which the pages link."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    for old, new in _MOVED.items():
        files.append(File.generated(config, new, content=(ROOT / "docs" / old).read_text()))
    pages = [("README.md", ROOT / "README.md")]
    pages += [(str(path.relative_to(ROOT)), path) for path in sorted((ROOT / "docs").rglob("*.md"))]
    for place, path in pages:
        for target in _outside(place, path.read_text()):
            uri = f"repository/{target}"
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Returns the page with links that work on the site."""
    place = _place(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, (path, mark, anchor) = found[1], found[2].partition("#")
        target = _target(place, path)
        if not path:
            return found[0]
        if (ROOT / target).is_dir():
            return text
        if target == "README.md":
            uri = "index.md"
        elif target.startswith("docs/"):
            uri = _MOVED.get(target.removeprefix("docs/"), target.removeprefix("docs/"))
        elif (ROOT / target).is_file():
            uri = f"repository/{target}"
        else:
            return found[0]  # mkdocs names it
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{mark}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def _place(uri: str) -> str:
    """The path, in the repository, of a page on the site."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith("repository/"):
        return uri.removeprefix("repository/")
    return "docs/" + next((old for old, new in _MOVED.items() if new == uri), uri)


def _outside(place: str, text: str) -> set[str]:
    """Files in the repository, but outside ``docs/``, that a page links to."""
    paths = (found[2].partition("#")[0] for part in _FENCE.split(text)[::2] for found in _LINK.finditer(part))
    targets = {_target(place, path) for path in paths if path}
    return {target for target in targets if not target.startswith(("docs/", "README.md")) and (ROOT / target).is_file()}


def _target(place: str, path: str) -> str:
    """The path in the repository to which a link on the page at ``place`` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
