"""Runs cells of the matrix and prints a table of them; the exit status is 1 if a promise was broken.

``python -m tests.scenario.matrix`` runs all of them against our broker in virtual time; ``--row``, ``--column`` and
``--variant`` choose some. ``--sample 150`` runs a sample in real time against servers in processes of their own, which
it kills with SIGKILL; ``--broker 5.3.3`` chooses the servers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.scenario.matrix.cell import Report
from tests.scenario.matrix.choice import jobs_of, sample, short_form
from tests.scenario.matrix.pool import run_jobs
from tests.scenario.matrix.real import OFFICIAL, OURS
from tests.scenario.matrix.table import COLUMNS, ROWS
from tools.peers.packages import server_classpath


def print_table(reports: Sequence[Report]) -> None:
    """Prints rows and columns; each cell is ``ok``, ``n.a.`` or the number of failed forms."""
    rows = [row for row in ROWS if any(report.row == row.name for report in reports)]
    columns = [column for column in COLUMNS if any(report.column == column.name for report in reports)]
    width = max((len(row.name) for row in rows), default=0) + 1
    print(" " * width + " ".join(f"{column.name[:11]:>11}" for column in columns))
    for row in rows:
        texts = []
        for column in columns:
            found = [report for report in reports if (report.row, report.column) == (row.name, column.name)]
            bad = sum(bool(report.findings) for report in found)
            texts.append("n.a." if not found else "ok" if not bad else f"FAIL {bad}/{len(found)}")
        print(f"{row.name:<{width}}" + " ".join(f"{text:>11}" for text in texts))


def print_failure(report: Report) -> None:
    """Prints what was promised and what was seen."""
    form = f" [{report.variant}]" if report.variant else ""
    form += f" with {report.facts['broker']}" if report.facts.get("broker") else ""
    print(f"{report.row} x {report.column}{form}: promised: {report.promised}")
    for finding in report.findings[:6]:
        print(f"    {finding[:400]}")
    if len(report.findings) > 6:
        print(f"    and {len(report.findings) - 6} more")


def main(arguments: Sequence[str]) -> int:
    """Runs the cells; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenario.matrix", description=__doc__)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--column", action="append", choices=[column.name for column in COLUMNS])
    parser.add_argument("--variant", action="append", help="only these forms of an event")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--sample", type=int, help="only so many cells, with servers in processes, in real time")
    parser.add_argument("--seed", type=int, default=0, help="draws the sample")
    parser.add_argument("--broker", action="append", choices=[OURS, *OFFICIAL], help="servers of the sample")
    parser.add_argument("--short", choices=("consumers", "producers"), help="the short form of the tests")
    parser.add_argument("--json", help="file for one JSON line per cell")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    jobs = [
        job for job in jobs_of(options.row, options.column) if not options.variant or job.variant in options.variant
    ]
    if options.short:
        jobs = short_form(producers=options.short == "producers")
    if options.sample or options.broker:
        brokers = options.broker or [OURS, *OFFICIAL]
        jobs = sample(jobs, options.sample or len(jobs), brokers, options.seed)
        for version in brokers:
            if version != OURS:
                server_classpath(version)  # fetches what is missing, before several processes want it at once
    reports = []
    for report in run_jobs(jobs, options.jobs):
        reports.append(report)
        if report.findings:
            print_failure(report)
            sys.stdout.flush()
        if options.json:
            with Path(options.json).open("a", encoding="utf-8") as file:
                file.write(json.dumps(report.__dict__) + "\n")
    print_table(reports)
    failed = sum(bool(report.findings) for report in reports)
    print(f"{len(reports)} cells, {failed} failed, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
