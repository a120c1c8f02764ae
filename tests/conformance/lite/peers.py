"""Plays the life of lite topics with the official clients and ``mqadmin`` at Rucola's servers, and compares what they
see with what they saw of the official servers 5.5.0: ``python -m tests.conformance.lite.peers``.

``tests/golden/lite`` has the recordings, made by ``record`` with queues in files and in RocksDB. Where these two
differ, either is right. ``--found`` compares recordings that are there already. Exit status: 0 if each scenario is
equal or its differences are explained, 1 if not, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.lite.compare import differences, seen
from tests.conformance.lite.explained import Verdict, judged
from tests.conformance.lite.record import GOLDEN, KINDS, MORE, PEER_NAMES, SCENARIOS, record
from tools.peers.packages import PeerError

SUFFIX = ".jsonl.xz"


def verdict(scenario: str, folder: Path) -> Verdict | None:
    """Compares a scenario with the recording that it is nearest to; None if one of the two is missing."""
    path = folder / f"{scenario}{SUFFIX}"
    peers = [peer for kind in KINDS if (peer := GOLDEN / kind / path.name).exists()]
    if not path.exists() or not peers:
        return None
    ours = seen(path)
    verdicts = [judged(scenario, len(ours), differences(seen(peer), ours)) for peer in peers]
    return min(verdicts, key=lambda one: (len(one.unexplained), len(one.reasons)))


def table(verdicts: list[Verdict]) -> Iterator[str]:
    """The lines of a Markdown table, and what is not explained."""
    yield from ("| scenario | lines seen | result | why |", "|---|---|---|---|")
    for one in verdicts:
        yield f"| {one.scenario} | {one.lines} | {one.word} | {'; '.join(one.reasons)} |"
    for one in verdicts:
        for difference in one.unexplained:
            yield f"\n{one.scenario}:\n{difference}"


def main(arguments: list[str]) -> int:
    """Plays, compares and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.lite.peers", description=__doc__)
    names = [*SCENARIOS, *MORE]
    parser.add_argument("--peer", choices=PEER_NAMES[1:], default="rucola", help="Rucola's servers, or its proxy")
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--found", type=Path, help="folder of recordings that are to be compared, not played")
    options = parser.parse_args(arguments)
    broken: list[str] = []
    with TemporaryDirectory(prefix="rucola-lite-") as directory:
        folder = options.found or Path(directory)
        if options.found is None:
            try:
                broken = record("file", folder, options.scenarios, options.peer)
            except PeerError as error:
                print(f"lite: {error}", file=sys.stderr)
                return 2
        verdicts = [one for name in names if (one := verdict(name, folder)) is not None]
    print(*table(verdicts), sep="\n")
    if broken:
        print(f"broke off: {', '.join(broken)}")
    return int(bool(broken) or not verdicts or any(one.unexplained for one in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
