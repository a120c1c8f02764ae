"""Output of ``rucola store``: tables for people, JSON lines for scripts, progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from rucola.cli.closed_output import OutputClosedError
from rucola.cli.fitted_table import print_fitted
from rucola.cli.lines import print_json_line, shown_json
from rucola.cli.message_lines import json_lines, text_lines
from rucola.cli.store_text import shown, time_text
from rucola.cli.terminal import Terminal
from rucola.common.json_library import orjson

if TYPE_CHECKING:
    from rucola.formats.annotate import AnnotatedField
    from rucola.store.doctor.census import DeadLetters, Lag, Tally
    from rucola.store.doctor.repair import RepairReport
    from rucola.store.inspect.hexdump import Dump
    from rucola.store.inspect.summary import QueueInfo, StoreInfo
    from rucola.store.offline.rows import SegmentRows
    from rucola.store.verify.check import VerifyReport
    from rucola.store.verify.findings import Finding

_BYTES_A_LINE = 8
_WRITERS = {1: "Rucola with checksums"}
"""Texts for the values of ``recovery.watermark.Writer``, whose import would delay every command."""
_FIELD_BYTES_MAX = 512


def print_info(info: StoreInfo, json: bool) -> None:
    """Prints the result of ``store info``."""
    facts = asdict(info)
    facts["index_files"] = [asdict(file) | {"header": file.header._asdict()} for file in info.index_files]
    writers = [] if info.watermark is None else [mark._asdict() for mark in info.watermark.writers]
    if json:
        if info.watermark is not None:
            facts["watermark"]["writers"] = writers
        _print_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    entries = sum(max(file.header.index_count - 1, 0) for file in info.index_files)
    rows = {
        "store": info.path,
        "written by": info.writer,
        "in use": "yes" if info.lock_held else "no",
        "stopped cleanly": "no (file abort)" if info.abort and not info.lock_held else "-" if info.lock_held else "yes",
        "size": _bytes(info.size_bytes),
        "log": f"{info.min_offset} to {info.end_offset} in {info.segments} segments of {_bytes(info.segment_bytes)}",
        "topics": str(info.topics),
        "queues": f"{info.queues}, segments of {_bytes(info.queue_segment_bytes)}",
        "messages": str(info.messages),
        "lite topics": lite_text(info.lite_topics, info.lite_queues)
        + ", for RocketMQ: rucola store export-queues" * (info.lite_topics > 0),
        "index": f"{len(info.index_files)} files, {entries} entries",
    }
    if not info.lite_topics and not info.lite_queues:
        del rows["lite topics"]
    for file in info.index_files:
        geometry = f"{file.slots} slots, {file.entries_max} entries" if file.slots else "geometry unknown"
        rows[f"  {file.name}"] = f"{max(file.header.index_count - 1, 0)} entries; {geometry}"
    rows["checkpoint"] = "-" if info.checkpoint is None else ""
    if info.checkpoint is not None:
        rows |= {f"  {name}": _with_time(name, value) for name, value in asdict(info.checkpoint).items()}
    rows["watermark"] = "-" if info.watermark is None else ""
    if info.watermark is not None:
        rows |= {f"  {name}": str(value) for name, value in asdict(info.watermark).items() if name != "writers"}
        named = (
            f"{_WRITERS.get(mark.writer, 'unknown')} from {mark.physical_offset}" for mark in info.watermark.writers
        )
        rows["  writers"] = ", ".join(named) or "unknown"
    for name, value in rows.items():
        grid.add_row(f"[dim]{name}", _shown(value))
    Terminal().print(grid)


def lite_text(topics: int, queues: int) -> str:
    """How many lite topics there are, and where."""
    parts = [f"{topics} in rucola-lite"] * (topics > 0) + [f"{queues} in consume queues"] * (queues > 0)
    return ", ".join(parts)


def print_queues(infos: list[QueueInfo], folded: tuple[int, int], json: bool) -> None:
    """Prints the result of ``store ls``.

    Args:
        folded: number of lite topics, and of those that have a consume queue, which are not listed.
    """
    if json:
        for info in infos:
            times = {"first_timestamp_ms": info.first_timestamp_ms, "last_timestamp_ms": info.last_timestamp_ms}
            _print_json(asdict(info.range) | {"count": info.count} | times)
        return
    table = _table("topic", "queue>", "min>", "max>", "count>", "first stored!", "last stored!")
    for info in infos:
        held = info.range
        numbers = (str(value) for value in (held.queue_id, held.min_offset, held.max_offset, info.count))
        table.add_row(
            _shown(held.topic), *numbers, time_text(info.first_timestamp_ms), time_text(info.last_timestamp_ms)
        )
    print_fitted(Terminal(), table)
    if any(folded):
        Terminal().print(f"and lite topics: {lite_text(*folded)}")


def print_messages(found: Iterable[SegmentRows], most: int | None, json: bool) -> None:
    """Prints the result of ``store cat`` or ``store grep``: the first ``most`` messages of ``found``."""
    # The lines are written as text, because the stand-in for standard output in a test accepts no bytes.
    styled = not json and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    left = sys.maxsize if most is None else most
    for rows in found:
        part = rows._replace(chosen=rows.chosen[:left]) if left < len(rows.chosen) else rows
        left -= len(part.chosen)
        if part.chosen:
            _write(_json_text(json_lines(part)) if json else text_lines(part, styled))
        if left <= 0:
            return


def print_found(found: Iterable[tuple[str, SegmentRows]], most: int | None, json: bool) -> None:
    """Prints the result of ``store find``: the first ``most`` messages of ``found``, each with its store."""
    left, last = sys.maxsize if most is None else most, ""
    if not left:
        return
    for store, rows in found:
        part = rows._replace(chosen=rows.chosen[:left])
        left -= len(part.chosen)
        if json:
            name = orjson.dumps(store.encode("utf-8", "replace").decode()).decode()
            lines = _json_text(json_lines(part)).splitlines(keepends=True)
            _write("".join(f'{{"store":{name},{line[1:]}' for line in lines))
        else:
            if store != last:
                _write(f"{shown(store)}\n")
            print_messages([part], None, json)
        last = store
        if left <= 0:
            return


def print_stats(tallies: list[Tally], fields: list[str], dead: list[DeadLetters], lags: list[Lag], json: bool) -> None:
    """Prints the result of ``store stats``."""
    if json:
        for tally in tallies:
            _print_json({name: getattr(tally, name) for name in [*fields, "messages", "bytes"]})
        for letters in dead:
            _print_json({"dead_letters": letters._asdict()})
        for lag in lags:
            _print_json({"lag": asdict(lag) | {"lag": lag.lag}})
        return
    console = Terminal()
    table = _table(*(f"{name}>" if name == "queue_id" else name for name in fields), "messages>", "bytes>")
    for tally in tallies:
        values = [getattr(tally, name) for name in fields]
        texts = [
            time_text(value) if name == "hour_ms" else str(value) for name, value in zip(fields, values, strict=True)
        ]
        table.add_row(*map(_shown, texts), str(tally.messages), str(tally.bytes))
    print_fitted(console, table)
    if dead:
        table = _table("dead letters of", "from", "reason!", "messages>")
        for letters in dead:
            table.add_row(_shown(letters.group), _shown(letters.topic), letters.reason, str(letters.messages))
        print_fitted(console, table)
    if lags:
        table = _table("group", "topic", "queue>", "consumer offset>", "end>", "lag>")
        for lag in lags:
            numbers = (lag.queue_id, lag.consumer_offset, lag.max_offset, lag.lag)
            table.add_row(_shown(lag.group), _shown(lag.topic), *map(str, numbers))
        print_fitted(console, table)


def print_dump(dump: Dump, json: bool) -> None:
    """Prints the result of ``store hexdump``."""
    if json:
        fields = [asdict(field) | {"data": field.data.hex()} for field in dump.fields]
        _print_json({"file": dump.path, "title": dump.title, "fields": fields})
        return
    table = _table("position>", "bytes!", "field!", "value>", "")
    for field in dump.fields:
        for at in range(0, min(len(field.data), _FIELD_BYTES_MAX) or 1, _BYTES_A_LINE):
            line = field.data[at : at + _BYTES_A_LINE]
            name, value, meaning = _labels(field) if at == 0 else ("", "", _text(line))
            table.add_row(str(field.position + at), line.hex(" "), _shown(name), _shown(value), _shown(meaning))
        if len(field.data) > _FIELD_BYTES_MAX:
            table.add_row("", "...", "", "", f"{len(field.data) - _FIELD_BYTES_MAX} more bytes")
    console = Terminal()
    console.print(f"{_shown(dump.title)}\n{_shown(dump.path)}", soft_wrap=True)
    print_fitted(console, table)


def print_report(report: VerifyReport, json: bool, named: bool) -> None:
    """Prints the result of ``store verify`` for one store; with ``named``, the text begins with the store's path."""
    if json:
        _print_json(asdict(report) | {"clean": report.clean})
        return
    console = Terminal()
    if named:
        console.print(_shown(report.path), soft_wrap=True)
    if report.findings:
        _print_findings(report.findings)
    for note in report.notes:
        console.print(f"note: {_shown(note)}", soft_wrap=True)
    if report.affected:
        console.print(f"{report.affected} entries of queues and index refer to damaged parts of the log")
    console.print(
        f"{report.records} records up to physical offset {report.log_end}, {report.units} consistent queue entries, "
        f"{report.index_entries} index entries, {report.tables} tables in config",
        soft_wrap=True,
    )
    total = sum(report.counts.values())
    listed = sum(found.count for found in report.findings)
    more = f", {total - listed} of them not listed" if listed < total else ""
    console.print(f"[bold red]{total} findings{more}" if total else "[bold green]no findings")


def _print_findings(findings: Iterable[Finding]) -> None:
    table = _table("kind!", "file", "position>", "count>", "first of them")
    for found in findings:
        table.add_row(found.kind, _shown(found.file), str(found.position), str(found.count), _shown(found.detail))
    print_fitted(Terminal(), table)


def print_damage_passed(findings: list[Finding]) -> None:
    """Prints the damage that a search skipped, on standard error."""
    console = Terminal(error=True)
    for found in findings:
        console.print(
            f"damage: {_shown(found.file)}, position {found.position}: {_shown(found.detail)}", soft_wrap=True
        )


def print_summary(report: Any, json: bool) -> None:
    """Prints the result of a command that writes a store; the result is a dataclass."""
    print_facts(asdict(report), json)


def print_facts(facts: Mapping[str, Any], json: bool) -> None:
    """Prints names and values."""
    if json:
        _print_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        text = _bytes(value) if name.endswith("_bytes") else str(value)
        if isinstance(value, bool):
            text = "yes" if value else "no"
        grid.add_row(f"[dim]{name.replace('_', ' ')}", _shown(text))
    Terminal().print(grid)


def print_repair(report: RepairReport, json: bool) -> None:
    """Prints the result of ``store repair``."""
    if json:
        print_summary(report, json)
        return
    if report.remaining:
        _print_findings(report.remaining)
    print_facts({name: value for name, value in asdict(report).items() if name != "remaining"}, json)


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar for each step of a job; yields a function that takes step, tasks done and number of
    tasks.
    """
    console = Terminal(error=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done, total=total)

        yield advance


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Shows a progress bar if standard error is a terminal; yields a function that takes the bytes done and the
    total.
    """
    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    console = Terminal(error=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total or None)

        def advance(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def _labels(field: AnnotatedField) -> tuple[str, str, str]:
    value = "" if field.value is None else str(field.value)
    meaning = field.meaning
    if field.name.endswith("timestamp_ms") and isinstance(field.value, int) and field.value > 0:
        meaning = time_text(field.value)
    if field.value is None:
        meaning = f"{_text(field.data[:_BYTES_A_LINE])} {meaning}".strip()
    return field.name, value, meaning


def _text(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def _shown(text: str) -> str:
    """Escapes a text from a store: characters as in ``shown``, and brackets, which rich would read as markup."""
    return escape(shown(text))


def _with_time(name: str, value: int) -> str:
    return f"{value}  {time_text(value)}" if name.endswith("timestamp_ms") and value > 0 else str(value)


def _bytes(count: int) -> str:
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{count} B ({value:.1f} {units[0]})"


def _table(*columns: str) -> Table:
    """Makes a table. A name that ends in ``>`` marks a column of numbers, ``!`` a column that is never wrapped."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        table.add_column(column.rstrip(">!"), justify=justify, overflow="fold", no_wrap=column.endswith("!"))
    return table


def _print_json(facts: Mapping[str, Any]) -> None:
    # The name of a topic's directory may contain bytes that are not UTF-8. Python reads these bytes as lone surrogates,
    # which orjson refuses.
    try:
        line = orjson.dumps(facts, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        line = orjson.dumps(_plain(facts), option=orjson.OPT_NON_STR_KEYS)
    print_json_line(line)


def _json_text(lines: bytes) -> str:
    # Scripts get the lines as they are, because a search for escapes would take a tenth of the time of ``store cat``.
    return shown_json(lines.decode()) if sys.stdout.isatty() else lines.decode()


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise OutputClosedError from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
