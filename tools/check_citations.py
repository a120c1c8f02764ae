"""Checks the targets of citations and links: ``python tools/check_citations.py --check``.

Comments, docstrings and Markdown cite pages of this repository by name, or by name and number: ``protocol.md 1.9`` is
the section with that number, and ``security.md S-27`` is a row of a table. Some rows are cited only by their id: rows
of ``reliability.md`` (R, P, G), ``security.md`` (S) and ``known_defects.md`` ("defect 36"). A relative link of a
Markdown page must lead to a file and, if the link names a heading, to a heading of this file. Each citation or link
without a target is named with its file and line, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "docs", "bench", "demo", "tools", "packaging")
_ID = r"(?:\d+(?:\.\d+)*|[A-Z]-\d{2})"
_CITED = re.compile(rf"([\w./-]*\w\.md)\b`*((?:\s+{_ID}(?:(?:,\s+|\s+and\s+|\s+to\s+|-){_ID})*\b)?)")
_ROW = re.compile(r"(?<![\w-])([RPGS])-\d{2}\b")
_DEFECT = re.compile(r"\bdefect (\d{1,2})\b(?!\.\d)", re.IGNORECASE)
_SECTION = re.compile(r"\b(?:[Ss]ections?|see) (\d+(?:\.\d+)*)\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_ROW_PAGES = {"R": "reliability.md", "P": "reliability.md", "G": "reliability.md", "S": "security.md"}

Problem = tuple[Path, int, str]
"""File, line, and the citation or link without a target."""


class Page:
    """A Markdown page, and the parts of it that can be cited."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Blocks of code have no links or headings. Their lines stay, but empty, so that line numbers are right.
        self.prose = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), path.read_text(encoding="utf-8"))

    @cached_property
    def headings(self) -> list[str]:
        """Texts of the headings."""
        return _HEADING.findall(self.prose)

    @cached_property
    def sections(self) -> set[str]:
        """Section numbers, from the headings that have one."""
        numbers = (re.match(r"\d+(?:\.\d+)*", heading) for heading in self.headings)
        return {number.group() for number in numbers if number}

    @cached_property
    def ids(self) -> set[str]:
        """Numbers of sections and ids of rows; plain numbers of rows only where no section has a number."""
        cells = " ".join(re.findall(r"^\|([^|]+)\|", self.prose, re.MULTILINE))
        rows = re.findall(r"\b[A-Z]-\d{2}\b" if self.sections else r"\b(?:[A-Z]-\d{2}|\d+)\b", cells)
        return self.sections | set(rows)

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of headings, which a link may name after ``#``."""
        return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in self.headings}


class Repository:
    """All files below ``root`` that may contain citations, and the pages that they may cite."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.*"))]
        self.sources = sorted(path for path in files if path.suffix == ".py")
        self.pages = {path: Page(path) for path in sorted(files) if path.suffix == ".md"}

    def problems(self) -> Iterator[Problem]:
        """All citations and links without a target."""
        for path in self.sources:
            source = path.read_text(encoding="utf-8")
            if ".md" in source or _ROW.search(source) or _DEFECT.search(source):
                for line, text in _prose(source):
                    yield from self._citations(path, line, text)
        for path, page in self.pages.items():
            yield from self._citations(path, 1, page.prose)
            yield from self._links(page)
            if page.sections:
                for cited in _SECTION.finditer(page.prose):
                    if cited[1] not in page.sections:
                        yield path, _line(1, cited), f"section {cited[1]} of this page"

    def _citations(self, path: Path, line: int, text: str) -> Iterator[Problem]:
        for cited in _CITED.finditer(text):
            if "//" in cited[1]:
                continue  # of another site
            pages = self._named(path, cited[1])
            if not pages:
                yield path, _line(line, cited), cited[1]
            for number in re.findall(_ID, cited[2]) if pages else ():
                if not any(number in page.ids for page in pages):
                    yield path, _line(line, cited), f"{cited[1]} {number}"
        for cited in _ROW.finditer(text):
            if not any(cited.group() in page.ids for page in self._named(path, _ROW_PAGES[cited[1]])):
                yield path, _line(line, cited), cited.group()
        for cited in _DEFECT.finditer(text):
            if not any(cited[1] in page.ids for page in self._named(path, "known_defects.md")):
                yield path, _line(line, cited), f"defect {cited[1]}"

    def _named(self, path: Path, name: str) -> list[Page]:
        """Pages that file ``path`` cites as ``name``: the page at this path, relative to the file or the root;
        otherwise all pages with this file name.
        """
        for place in (path.parent, self.root):
            if page := self.pages.get((place / name).resolve()):
                return [page]
        return [] if "/" in name else [page for page in self.pages.values() if page.path.name == name]

    def _links(self, page: Page) -> Iterator[Problem]:
        for link in _LINK.finditer(page.prose):
            name, _, anchor = link[1].partition("#")
            if ":" in name:
                continue  # of another site
            target = (page.path.parent / name).resolve() if name else page.path
            other = self.pages.get(target)
            if not target.exists() or (anchor and other and anchor not in other.anchors):
                yield page.path, _line(1, link), link[1]


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of Python source, with line numbers; comments of successive lines are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield last - len(block) + 1, "\n".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    if block:
        yield last - len(block) + 1, "\n".join(block)


def _line(first: int, found: re.Match[str]) -> int:
    return first + found.string.count("\n", 0, found.start())


def main(arguments: list[str]) -> int:
    """Prints every citation and link without a target; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="accepted like in the other tools; this tool never writes")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    root = parser.parse_args(arguments).root.resolve()
    problems = sorted(Repository(root).problems())
    for path, line, what in problems:
        print(f"{path.relative_to(root)}:{line}: {what} leads nowhere", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
