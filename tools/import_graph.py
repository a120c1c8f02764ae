"""Draws the import graph of the packages into docs/modules.md, from the imports in the code.

python tools/import_graph.py           rewrites the picture
python tools/import_graph.py --check   exits with 1 if the picture differs from the code
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp

PAGE = Path(__file__).parent.parent / "docs" / "modules.md"
BEGIN, END = "<!-- import graph: begin -->", "<!-- import graph: end -->"
LAYERS = [
    (9, ["cli"]),
    (8, ["lab"]),
    (8, ["console", "proxy"]),
    (7, ["broker", "controller", "namesrv", "spark", "sql"]),
    (6, ["lake"]),
    (5, ["sync", "arrow"]),
    (4, ["client"]),
    (3, ["grpc"]),
    (3, ["store", "remoting", "places"]),
    (2, ["runtime"]),
    (1, ["formats", "protocol", "http2", "filter"]),
    (0, ["common"]),
    (0, ["errors"]),
]
"""Rows from top to bottom, each with its number in the table of layers; a row may import the rows below it."""
EVERYWHERE = {"common", "errors"}
"""Nearly all packages import these two. Their arrows would hide the others, so only the table has them."""


def edges() -> set[tuple[str, str]]:
    """Pairs of packages below ``rucola``; the first package imports the second."""
    graph = grimp.build_graph("rucola")
    pairs = {
        (package(module), package(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return {(a, b) for a, b in pairs if a and b and a != b}


def package(module: str) -> str:
    """The package of a module, such as ``store`` for ``rucola.store.log.flush``; empty for root and test helpers."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] not in ("testing", "__main__") else ""


def picture() -> str:
    """Returns a Mermaid graph with one row per layer, then a table of the imports.

    The table includes the packages that every package imports.
    """
    found = edges()
    rank = {name: place for place, (_, row) in enumerate(LAYERS) for name in row}
    unknown = sorted({name for pair in found for name in pair} - rank.keys())
    if unknown:
        sys.exit(f"import_graph: packages without a layer: {', '.join(unknown)}")
    lines = ["```mermaid", "graph TD"]
    for place, (number, row) in enumerate(LAYERS):
        drawn = [name for name in row if name not in EVERYWHERE]
        if drawn:
            lines += [f'  subgraph row{place}["layer {number}"]', *(f"    {name}" for name in drawn), "  end"]
    lines += [f"  {a} --> {b}" for a, b in sorted(found) if b not in EVERYWHERE]
    lines += ["```", "", "| layer | package | imports |", "|---|---|---|"]
    for number, row in LAYERS:
        for name in row:
            below = sorted((b for a, b in found if a == name), key=lambda b: (rank[b], b))
            lines.append(f"| {number} | `{name}` | {', '.join(below) or '-'} |")
    return "\n".join(lines)


def main() -> None:
    """Writes the picture, or with ``--check`` says whether it is current."""
    text = PAGE.read_text()
    head, found, rest = text.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        sys.exit(f"import_graph: {PAGE.name} lacks the markers {BEGIN} ... {END}")
    wanted = f"{head}{BEGIN}\n{picture()}\n{END}{tail}"
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.exit("import_graph: docs/modules.md does not show the current imports; run make docs")
    elif wanted != text:
        PAGE.write_text(wanted)


if __name__ == "__main__":
    main()
