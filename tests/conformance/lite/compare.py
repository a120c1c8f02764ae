"""Compares two lives of lite topics, as far as clients and ``mqadmin`` saw them:
``python -m tests.conformance.lite.compare A B``.

Each folder has the files that ``record`` wrote. Ids, times and texts of refusals are masked; deliveries are compared
without their order, because clients consume at the same time. Exit status: 0 if nothing differs, 1 if something does.
"""

from __future__ import annotations

import difflib
import json
import lzma
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SEEING = ("java", "python", "node", "by hand", "mqadmin")
"""Who sees something in a recording."""
_MASKS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\b01[0-9A-F]{32}\b", "ID"),
        (r"error (\w+)\t.*?(\[code=\d+|code: \d+|StatusCode\.\w+|$).*", r"error \1 \2"),
        (r"[\w.-]+@\d+@\d+@\w+", "CLIENT"),
        (r"127\.0\.0\.\d:\d+", "ADDRESS"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME"),
        (r"\b\d{13}\b \(\d+ s ago\)", "TIME"),
        (r"receives each: \((?!1500,)\d+", "receives each: (fewer"),  # as many as a slow broker gave in the time
        (r"\s+", " "),
    )
)
_LIST = re.compile(r"\[([^\[\]()]*)\]")
UNREACHED = "failed to connect to all addresses"
OPTIONS = "updateBrokerConfig"
"""How options are changed is not compared: see ``Life.limit``."""


@dataclass(frozen=True)
class Difference:
    """Lines that stand in one life only, or instead of others.

    Attributes:
        theirs: what the first life has, lines separated by ``\\n``.
        ours: what the second life has.
    """

    theirs: str
    ours: str

    def __str__(self) -> str:
        lines = [f"- {line}" for line in self.theirs.splitlines()] + [f"+ {line}" for line in self.ours.splitlines()]
        return "\n".join(lines)


def differences(theirs: Sequence[str], ours: Sequence[str]) -> list[Difference]:
    """What differs between two scenarios. As many lines in place of as many others are differences of their own."""
    found = []
    matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
    for kind, begin, end, other_begin, other_end in matcher.get_opcodes():
        before, after = theirs[begin:end], ours[other_begin:other_end]
        if kind == "replace" and len(before) == len(after):
            found += [Difference(*pair) for pair in zip(before, after, strict=True)]
        elif kind != "equal":
            found.append(Difference("\n".join(before), "\n".join(after)))
    return found


def seen(path: Path) -> list[str]:
    """What clients and ``mqadmin`` saw in a scenario, a line each. A send that the relay could not pass on, because its
    own connection to the server was still to be made, is left out: it is made again.
    """
    lines: list[str] = []
    with lzma.open(path, "rt") as file:
        for line in file:
            record = json.loads(line)
            if record.get("wire") != "note" or record["who"] not in SEEING or OPTIONS in record["said"]:
                continue
            if UNREACHED in record["said"]:
                lines.pop()  # what the client was told
                continue
            deliveries = " ".join(sorted(record.get("seen") or ()))
            lines.append(f"{record['who']}: {masked(record['said'])} {deliveries}".rstrip())
            lines += [f"  {masked(printed)}" for printed in (record.get("printed") or "").splitlines() if printed]
    return lines


def masked(text: str) -> str:
    """A text without what no two lives have in common; elements of lists are sorted."""
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return _LIST.sub(lambda found: f"[{','.join(sorted(re.split(', ?', found[1])))}]", text).strip()


def main(arguments: list[str]) -> int:
    """Compares the scenarios that both folders have; prints what differs."""
    first, second = map(Path, arguments)
    names = [path.name for path in sorted(first.glob("*.jsonl.xz")) if (second / path.name).exists()]
    differing = 0
    for name in names:
        found = differences(*(seen(folder / name) for folder in (first, second)))
        differing += bool(found)
        print(f"{name.partition('.')[0]}: {'' if found else 'equal'}", *map(str, found), sep="\n")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
