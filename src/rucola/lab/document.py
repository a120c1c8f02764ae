"""A page as blocks, written as Markdown or as one self-contained HTML file.

Text of blocks may have ``**bold**`` and backticks; everything else in it is literal.
"""

from __future__ import annotations

import re
import textwrap
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias


@dataclass(frozen=True)
class Heading:
    """A heading. Level 1 is the title of the page."""

    level: int
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class TableBlock:
    """A table; ``numbers`` means that all columns except the first are aligned to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool


@dataclass(frozen=True)
class Picture:
    """A picture, by its file name."""

    name: str
    text: str


@dataclass(frozen=True)
class Program:
    """Source code, collapsed at first."""

    title: str
    code: str


_LINE_MAX = 120

Block: TypeAlias = "Heading | Text | Items | TableBlock | Picture | Program"


def to_markdown(blocks: Sequence[Block]) -> str:
    """Returns the page as Markdown; pictures are separate files."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Text(text):
            return _wrapped(text)
        case Items(items):
            return "\n".join(_wrapped(item, "- ") for item in items)
        case TableBlock(title, header, rows, numbers):
            align = ["---", *(["---:" if numbers else "---"] * (len(header) - 1))]
            lines = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in (header, align, *rows)]
            return f"**{title}**\n\n" + "\n".join(f"| {line} |" for line in lines)
        case Picture(name, text):
            return _wrapped(f"![{text}]({name})")
        case Program(title, code):
            return f"<details><summary>{title}</summary>\n\n```python\n{code}```\n\n</details>"


def _wrapped(text: str, mark: str = "") -> str:
    """``text`` in lines of at most 120 characters; the lines after the first are indented by the length of ``mark``."""
    return textwrap.fill(
        mark + text,
        _LINE_MAX,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def to_html(title: str, blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """Returns the page as HTML, with all pictures inside."""
    body = "\n".join(_html(block, pictures) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>\n{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block, pictures: Mapping[str, bytes]) -> str:
    match block:
        case Heading(level, text):
            return f'<h{level} id="{_anchor(text)}">{_inline(text)}</h{level}>'
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Items(items):
            return "<ul>\n" + "\n".join(f"<li>{_inline(item)}</li>" for item in items) + "\n</ul>"
        case TableBlock(title, header, rows, numbers):
            head = "".join(f"<th>{_inline(cell)}</th>" for cell in header)
            lines = "\n".join(f"<tr>{''.join(f'<td>{_inline(cell)}</td>' for cell in row)}</tr>" for row in rows)
            kind = ' class="numbers"' if numbers else ""
            return f"<table{kind}>\n<caption>{_inline(title)}</caption>\n<tr>{head}</tr>\n{lines}\n</table>"
        case Picture(name, text):
            data = b64encode(pictures[name]).decode()
            return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'
        case Program(title, code):
            return f"<details><summary>{_inline(title)}</summary>\n<pre>{escape(code)}</pre>\n</details>"


def _inline(text: str) -> str:
    text = escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)
    return re.sub(r"\[([^\]]+)\]\((#[^)]+)\)", r'<a href="\2">\1</a>', text)


def _anchor(text: str) -> str:
    """Returns the anchor that GitHub makes from a heading."""
    return re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-")


_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; }
caption { text-align: left; font-weight: bold; padding-bottom: 0.3rem; }
th, td { padding: 0.15rem 0.8rem 0.15rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee; }
table.numbers td:not(:first-child), table.numbers th:not(:first-child) { text-align: right; }
img { max-width: 100%; }
pre { background: #f6f6f6; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem; }
code { background: #f2f2f2; }
"""
