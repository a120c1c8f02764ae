"""Compares two lives of lite topics, as far as clients saw them: ``python -m tests.conformance.lite.compare A B``.

Each folder has the files that ``record`` wrote. Ids, times and texts of refusals are masked; deliveries are compared
without their order, because clients consume at the same time. Exit status: 0 if nothing differs, 1 if something does.
"""

from __future__ import annotations

import difflib
import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CLIENTS = ("java", "python", "node", "by hand")
_IDS = re.compile(r"\b01[0-9A-F]{32}\b")
_ERROR = re.compile(r"error (\w+)\t.*?(\[code=\d+|code: \d+|StatusCode\.\w+|$).*")


def main(arguments: list[str]) -> int:
    """Compares the scenarios that both folders have; prints what differs."""
    first, second = map(Path, arguments)
    names = [path.name for path in sorted(first.glob("*.jsonl.xz")) if (second / path.name).exists()]
    differing = 0
    for name in names:
        before, after = (list(seen(folder / name)) for folder in (first, second))
        lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))
        differing += bool(lines)
        print(f"{name.partition('.')[0]}: {'equal' if not lines else ''}", *lines[2:], sep="\n  " if lines else "")
    return int(differing > 0)


def seen(path: Path) -> Iterator[str]:
    """What the clients of a scenario saw, a line each."""
    with lzma.open(path, "rt") as file:
        for line in file:
            record = json.loads(line)
            if record.get("wire") == "note" and record["who"] in CLIENTS:
                deliveries = " ".join(sorted(record.get("seen") or ()))
                text = _ERROR.sub(r"error \1 \2", _IDS.sub("ID", record["said"]))
                yield f"{record['who']}: {text} {deliveries}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
