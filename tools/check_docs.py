"""Checks the pages for readers: ``python tools/check_docs.py --check``.

A page stays within its budget of words, and every page has one. Prose lines have at most 120 characters, also in the
changelog and in the pages of examples. The first entry of the changelog has at most 30 lines. Code and generated text
are neither counted nor measured; tables are counted, but their lines may be long. ``check_citations`` checks links and
citations, and ``generated_docs`` finds options without a page. Each problem is named with file and line, and the exit
status is then 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = {
    "README.md": 700,
    "docs/acknowledgements.md": 900,
    "docs/ARCHITECTURE.md": 3350,
    "docs/bodies.md": 1450,
    "docs/changing.md": 250,
    "docs/client.md": 1560,
    "docs/client-promises.md": 100,
    "docs/clocks.md": 600,
    "docs/coming-from.md": 700,
    "docs/configuration.md": 430,
    "docs/conformance.md": 1740,
    "docs/console.md": 2200,
    "docs/contributing.md": 1610,
    "docs/decisions/*.md": 500,
    "docs/controller.md": 1000,
    "docs/deleting.md": 600,
    "docs/figures.md": 220,
    "docs/formats/*.md": 400,
    "docs/java-client.md": 550,
    "docs/lab/questions.md": 400,
    "docs/lake-changes.md": 900,
    "docs/lakehouse.md": 1100,
    "docs/lake-storage.md": 600,
    "docs/lite.md": 1700,
    "docs/log-archive.md": 400,
    "docs/log-events.md": 450,
    "docs/metrics.md": 350,
    "docs/modules.md": 4900,
    "docs/observability.md": 350,
    "docs/operations.md": 1880,
    "docs/performance.md": 2280,
    "docs/recovery.md": 1300,
    "docs/replay.md": 700,
    "docs/replica.md": 2290,
    "docs/lite-delivery.md": 860,
    "docs/lite-life.md": 750,
    "docs/reference/known_defects.md": 1330,
    "docs/reference/lite.md": 2780,
    "docs/reference/protocol.md": 20560,
    "docs/reference/reliability.md": 2270,
    "docs/reference/store.md": 16_800,
    "docs/rocketmq5.md": 900,
    "docs/security.md": 4680,
    "docs/service.md": 620,
    "docs/spark-clusters.md": 700,
    "docs/spark-pipelines.md": 900,
    "docs/spark-writing.md": 900,
    "docs/spark.md": 1920,
    "docs/sql.md": 825,
    "docs/start.md": 600,
    "docs/store-doctor.md": 2280,
    "docs/testing-java-go.md": 300,
    "docs/testing.md": 950,
    "docs/tutorial.md": 700,
    "docs/two-copies.md": 1920,
}
"""Largest number of words that each page may have."""
GENERATED = {"docs/lab/README.md", "docs/promises.md"}
"""Pages that a program writes as a whole; they have no budget of words."""
LINE_MAX = 120
CHANGES_MAX = 30
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(
    r"^<!-- (?:generated|import graph|access table|options|figures|soak|claims).*?^<!-- .*?end.*? -->$",
    re.DOTALL | re.MULTILINE,
)

Problem = tuple[str, int, str]
"""Page, line, and what is wrong there."""


def prose(text: str) -> str:
    """``text`` without code and generated parts; their lines become empty, so that line numbers stay right."""
    for pattern in (_FENCE, _BLOCK):
        text = pattern.sub(lambda found: "\n" * found.group().count("\n"), text)
    return text


def problems(root: Path) -> Iterator[Problem]:
    """Finds the problems in a repository's pages."""
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        page = path.relative_to(root).as_posix()
        if not path.exists():
            continue
        text = prose(path.read_text(encoding="utf-8"))
        budget = next((words for pattern, words in BUDGETS.items() if path.match(pattern)), None)
        if page in GENERATED:
            pass
        elif budget is None:
            yield page, 1, "has no budget of words in tools/check_docs.py"
        elif (words := len(text.split())) > budget:
            yield page, 1, f"has {words} words; {budget} are allowed"
        yield from _long_lines(page, text)
    changes = root / "CHANGELOG.md"
    for path in [changes, *sorted((root / "examples").rglob("*.md"))]:
        if path.exists():
            yield from _long_lines(path.relative_to(root).as_posix(), prose(path.read_text(encoding="utf-8")))
    if changes.exists():
        entry = re.split(r"^## ", changes.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
        if (lines := len(entry.strip().splitlines()) - 1) > CHANGES_MAX:
            yield "CHANGELOG.md", 1, f"its first entry has {lines} lines; {CHANGES_MAX} are allowed"


def _long_lines(page: str, text: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_MAX and not line.lstrip().startswith("|") and " " in line.strip():
            yield page, number, f"has {len(line)} characters; {LINE_MAX} are allowed"


def main(arguments: list[str]) -> int:
    """Names every problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="accepted like in the other tools; this tool never writes")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    found = list(problems(parser.parse_args(arguments).root.resolve()))
    for page, line, what in found:
        print(f"{page}:{line}: {what}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
