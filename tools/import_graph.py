"""Draws the import graph of the packages, as the code has it, into docs/ARCHITECTURE.md.

    python tools/import_graph.py           rewrites the picture
    python tools/import_graph.py --check   exit 1 when the picture is not that of the code
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp

PAGE = Path(__file__).parent.parent / "docs" / "ARCHITECTURE.md"
BEGIN, END = "<!-- import graph: begin -->", "<!-- import graph: end -->"
LAYERS = [
    ["cli"],
    ["broker", "namesrv", "spark"],
    ["sync"],
    ["client"],
    ["store", "remoting"],
    ["runtime"],
    ["formats", "protocol", "filter"],
    ["common"],
    ["errors"],
]


def edges() -> dict[tuple[str, str], int]:
    """Number of importing modules for each pair of packages below ``rucola``."""
    graph = grimp.build_graph("rucola")
    found: dict[tuple[str, str], int] = {}
    for module in sorted(graph.modules):
        for imported in graph.find_modules_directly_imported_by(module):
            pair = (package(module), package(imported))
            if "" not in pair and pair[0] != pair[1]:
                found[pair] = found.get(pair, 0) + 1
    return found


def package(module: str) -> str:
    """``rucola.store.flush`` -> ``store``; empty for the root package and test helpers."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] not in ("testing", "__main__") else ""


def picture() -> str:
    """A Mermaid graph, one row per layer, the number of importing modules on each arrow; then the layers as a table."""
    found = edges()
    rank = {name: level for level, row in enumerate(LAYERS) for name in row}
    unknown = sorted({name for pair in found for name in pair} - rank.keys())
    if unknown:
        sys.exit(f"import_graph: packages without a layer: {', '.join(unknown)}")
    lines = ["```mermaid", "graph TD"]
    for level, row in enumerate(LAYERS):
        lines.append(f'  subgraph L{len(LAYERS) - level}[" "]')
        lines.extend(f"    {name}" for name in row)
        lines.append("  end")
    lines.extend(f"  {a} -->|{n}| {b}" for (a, b), n in sorted(found.items(), key=lambda e: (rank[e[0][0]], e[0])))
    lines.append("```")
    lines += ["", "| layer | package | imports |", "|---|---|---|"]
    for level, row in enumerate(LAYERS):
        for name in row:
            below = sorted((b for a, b in found if a == name), key=lambda b: rank[b])
            lines.append(f"| {len(LAYERS) - level - 1} | `{name}` | {', '.join(below) or '-'} |")
    return "\n".join(lines)


def main() -> None:
    text = PAGE.read_text()
    head, found, rest = text.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        sys.exit(f"import_graph: {PAGE.name} lacks the markers {BEGIN} ... {END}")
    wanted = f"{head}{BEGIN}\n{picture()}\n{END}{tail}"
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.exit("import_graph: docs/ARCHITECTURE.md does not show the imports of the code; run: make docs")
    elif wanted != text:
        PAGE.write_text(wanted)


if __name__ == "__main__":
    main()
