"""What ``rucola top`` says of a cluster: one line of figures, problems; with ``--once`` also tables, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from rucola.cli.lines import print_json_line, print_text
from rucola.cli.mqadmin import output
from rucola.cli.store_text import shown
from rucola.cli.top_tables import Rows, Seen, TopTable
from rucola.common.json_library import orjson
from rucola.console.api.values import to_json
from rucola.console.cluster.problems import ClusterProblem, Severity
from rucola.console.pages.shown import ago, number, percent, rate, turn, utc
from rucola.console.pages.texts import translate
from rucola.console.views.lists import Overview, summary

Lists = Sequence[tuple[TopTable, Rows]]


def figures_of(overview: Overview) -> list[tuple[str, str]]:
    """Name and value of the figures of a cluster."""
    turns = [broker.longest_turn_ms for broker in overview.brokers if broker.longest_turn_ms is not None]
    return [
        ("in/s", rate(overview.in_rate)),
        ("out/s", rate(overview.out_rate)),
        ("lag", number(overview.lag)),
        ("oldest", ago(overview.oldest_ms, overview.taken_ms)),
        ("disk", percent(overview.disk_ratio)),
        ("longest turn", turn(max(turns, default=None))),
        ("topics", number(overview.topics)),
        ("groups", number(overview.groups)),
        ("clients", number(overview.clients)),
    ]


def problem_text(problem: ClusterProblem) -> str:
    """A problem in one line."""
    return shown(f"{problem.object} {translate('en', problem.text, **problem.values)}")


def problem_lines(problems: Iterable[ClusterProblem], limit: int) -> Text:
    """The worst problems, one a line, for a terminal with colors."""
    found, lines = list(problems), Text()
    for one in found[:limit]:
        lines.append("● ", "bold red" if one.severity is Severity.BAD else "yellow")
        lines.append(problem_text(one) + "\n")
    if len(found) > limit:
        lines.append(f"and {len(found) - limit} more\n", "dim")
    if not found:
        lines.append("● ", "green")
        lines.append("nothing that the console looks for is wrong\n", "dim")
    lines.right_crop(1)
    return lines


def print_tables(namesrv: str, seen: Seen, lists: Lists) -> None:
    """Prints the figures, the problems and the tables, for people."""
    overview = summary(seen.snapshot, seen.letters)
    taken = f"{utc(overview.taken_ms)} UTC" if overview.taken_ms else "not seen"
    print_text(f"{namesrv}  {taken}")
    print_text("  ".join(f"{name} {value}" for name, value in figures_of(overview)))
    for problem in overview.problems:
        print_text(f"{'bad    ' if problem.severity is Severity.BAD else 'warning'}  {problem_text(problem)}")
    for table, rows in lists:
        print_text("")
        output.table(
            [column.title for column in table.columns], [table.cells(row, overview.taken_ms) for row in rows.rows]
        )
        if rows.matching > len(rows.rows):
            print_text(f"{number(len(rows.rows))} of {number(rows.matching)} {table.name}")


def print_json(seen: Seen, lists: Lists) -> None:
    """Prints one line of JSON: the overview, and the lists by name, as the console's ``/api`` has them."""
    overview = summary(seen.snapshot, seen.letters)
    values = {"overview": to_json(overview, Overview)}
    values |= {table.name: to_json(rows, type(rows)) for table, rows in lists}
    print_json_line(orjson.dumps(values))
