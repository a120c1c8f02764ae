"""``rucola store compare``: whether two directories are copies of one log, and what each of them lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rucola.cli import store_output as output
from rucola.cli.exit_codes import ExitCode
from rucola.cli.store_arguments import Json, existing
from rucola.cli.store_text import time_text
from rucola.errors import FormatError, StoreDamagedError
from rucola.runtime.files import Files

if TYPE_CHECKING:
    from rucola.store.inspect.compare import ComparedCopy, StoreComparison, TableDifference
    from rucola.store.inspect.compare_logs import Part, RecordThere

First = Annotated[str, typer.Argument(metavar="A", help="Store directory.", show_default=False, callback=existing)]
Second = Annotated[str, typer.Argument(metavar="B", help="Its copy.", show_default=False, callback=existing)]
_GAPS_SHOWN = 20


def compare(first: First, second: Second, json: Json = False) -> int:
    """Compare two copies of a log byte by byte, even while they grow. Exits with 1 if they are not the same log."""
    from rucola.store.inspect import compare as comparing

    try:
        with output.progress("comparing", 0) as advance:
            found = comparing.compare((first, second), Files(), advance)
    except FormatError as error:
        raise StoreDamagedError(f"{first}, {second}", error.position, str(error), "run rucola store verify") from error
    if json:
        output.print_facts(_facts(found), True)
    else:
        output.print_facts(_lines(found), False)
    return ExitCode.CLEAN if found.same else ExitCode.FAILED


def _facts(found: StoreComparison) -> dict[str, Any]:
    facts = asdict(found) | {"same": found.same}
    for name, copy in (("first", found.first), ("second", found.second)):
        facts[name] |= {"lacks_before": copy.lacks_before._asdict(), "lacks_behind": copy.lacks_behind._asdict()}
        facts[name]["gaps"] = [gap._asdict() for gap in copy.gaps]
    if found.difference is not None:
        there = {"first": found.difference.first._asdict(), "second": found.difference.second._asdict()}
        facts["difference"] |= there
    return facts


def _lines(found: StoreComparison) -> dict[str, str]:
    lines = {}
    for name, copy in (("A", found.first), ("B", found.second)):
        used = ", in use" if copy.in_use else ""
        lines[name] = f"{copy.path}: {copy.min_offset} to {copy.end_offset}{used}"
    if found.difference is None and found.same:
        lines["same log"] = f"yes, {_range(found)}"
    elif found.difference is None:
        lines["same log"] = "unknown: no part of the log is in both"
    else:
        lines["same log"] = f"no, but {_range(found)}"
        lines["first difference"] = f"byte {found.difference.physical_offset}"
        lines["  in A"] = _there(found.difference.first)
        lines["  in B"] = _there(found.difference.second)
    for name, copy in (("A", found.first), ("B", found.second)):
        lines |= _lacks(name, copy)
    if found.meaningless:
        lines["behind blank records"] = f"bytes differ at {found.meaningless} places; they mean nothing"
    lines["tables"] = "equal" if not found.tables else ""
    lines |= {f"  {table.name}": _table(table) for table in found.tables}
    return lines


def _range(found: StoreComparison) -> str:
    if found.equal_from == found.equal_to:
        return "no byte is equal" if found.difference is not None else "both are empty"
    return f"equal from {found.equal_from} to {found.equal_to}"


def _lacks(name: str, copy: ComparedCopy) -> dict[str, str]:
    lines = {}
    if copy.lacks_before.size_bytes:
        segments = copy.lacks_before.segments
        lines[f"{name} lacks before"] = f"{_part(copy.lacks_before)}: {segments} segments that have expired here"
    if copy.lacks_behind.size_bytes:
        lines[f"{name} lacks behind"] = _part(copy.lacks_behind)
    if copy.gaps:
        shown = ", ".join(f"{gap.start} to {gap.end}" for gap in copy.gaps[:_GAPS_SHOWN])
        more = f" and {len(copy.gaps) - _GAPS_SHOWN} more" if len(copy.gaps) > _GAPS_SHOWN else ""
        lines[f"gaps of {name}"] = f"{shown}{more}: not compared, their messages are lost here"
    return lines


def _part(part: Part) -> str:
    return f"{part.messages} messages, {part.size_bytes} bytes"


def _there(record: RecordThere) -> str:
    where = f"{record.kind} at {record.physical_offset}"
    if record.kind == "message":
        where += f", offset {record.queue_offset} of {record.topic}/{record.queue_id}"
        where += f", stored {time_text(record.store_timestamp_ms)}"
    return f"{where}, {record.size} bytes, SHA-256 {record.sha256}" if record.size else where


def _table(table: TableDifference) -> str:
    if not table.only_first + table.only_second + table.different:
        return f"not compared: {table.names[0]}"
    counts = f"{table.only_first} only in A, {table.only_second} only in B, {table.different} differ"
    return f"{counts}: {', '.join(table.names)}"
