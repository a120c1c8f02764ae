"""Our stores, opened by the official message store and then by ours again: ``python -m tests.conformance.store.run``.

Our store writes a directory, and is stopped or killed. The official store reads all messages by queue, by key, by time
and by offset, appends, and stops. Our store opens the result, finds the messages of both stores, and appends again.
This is done for each version of the official store, with and without record checksums. Exit status: 0 if all checks
passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.conformance.store.contents import (
    BATCH_TOPIC,
    CRC_PROPERTY,
    GEOMETRY,
    KINDS,
    Put,
    as_read,
    in_queues,
    log_paths,
    opened,
    placed,
    runs,
    store_message,
)
from tools.peers.packages import PEERS, PeerError, java_program, need

from rucola.common.key_builder import LMQ_PREFIX
from rucola.common.message import MessageExt
from rucola.formats.message import decode_message, decode_messages
from rucola.spark.archive import archive_raw, restore
from rucola.store.message_store import MessageStore
from rucola.store.results import Boundary
from rucola.testing.clock import ManualClock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
TIMEOUT_S = 180
APPENDED = 60
SHOWN = 10
"""Maximum number of failures that are printed for a case."""
LATER_MS = 1_900_000_000_000
"""Time of the clock when our store opens the directory again; it is later than all times in the store."""
JAVA_OPENS = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")
"""Options that open the packages through which version 4.9 unmaps files, because Java 16 and newer close them."""
Answers = dict[str, dict[str, Any]]


@dataclass
class Case:
    """One store: the version of the official store that reads it, and how our store wrote it."""

    version: str
    killed: bool
    record_crc: bool
    kinds: bool = False
    several: bool = False
    restored: bool = False
    """Whether the store was archived raw, and the official store opens the restored files."""
    checks: Counter[bool] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def check(self, name: str, found: object, expected: object) -> None:
        """Counts one check; if it failed, records both values."""
        self.checks[found == expected] += 1
        if found != expected:
            if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
                found, expected = next(pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1])
            if isinstance(found, dict) and isinstance(expected, dict):
                names = [key for key in {**found, **expected} if found.get(key) != expected.get(key)]
                found, expected = ({key: value.get(key) for key in names} for value in (found, expected))
            self.failures.append(f"{name}: found {str(found)[:200]}, expected {str(expected)[:200]}")

    @property
    def version_5(self) -> bool:
        """Whether the reader is version 5: it reads records of version 2, finds times between two messages, and has
        record checksums.
        """
        return not self.version.startswith("4.")

    def __str__(self) -> str:
        end = "killed" if self.killed else "clean"
        kinds = ", all kinds of queues" if self.kinds else ""
        kinds += ", log in several directories" if self.several else ""
        kinds += ", archived and restored" if self.restored else ""
        return f"{self.version} {end} {'with' if self.record_crc else 'without'} record checksums{kinds}"


def main(arguments: list[str]) -> int:
    """Runs all cases, and prints the failures and the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.store.run", description=__doc__)
    parser.add_argument("--version", action="append", choices=VERSIONS, help="only this version")
    versions = parser.parse_args(arguments).version or list(VERSIONS)
    console = Console()
    cases = [
        Case(version, killed, record_crc)
        for version in versions
        for killed in (False, True)
        for record_crc in (True, False)
    ]
    cases += [
        Case(version, killed, True, True) for version in versions if version != "4.9.7" for killed in (False, True)
    ]
    cases += [Case(version, killed, True, several=True) for version in versions for killed in (False, True)]
    # Version 4.9 searches by the modification times of queue files, but a restore has just created these files.
    cases += [
        Case(version, killed, True, restored=True)
        for version in versions
        if version != "4.9.7"
        for killed in (False, True)
    ]
    try:
        for case in cases:
            with TemporaryDirectory(prefix="rucola-conformance-") as directory:
                run(case, Path(directory))
            console.print(f"{case}: {case.checks[True]} / {case.checks.total()}", highlight=False)
            for failure in case.failures[:SHOWN]:
                console.print(f"  {failure}", markup=False, highlight=False, soft_wrap=True)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    console.print(summary(cases, versions))
    return 0 if all(case.checks[True] and not case.failures for case in cases) else 1


def run(case: Case, directory: Path) -> None:
    """Writes a store, lets the official store read and append, and reads it again."""
    store = directory / "store"
    puts = write(case, store, directory / "puts.json")
    case.check("left running", (store / "abort").exists(), case.killed)
    if case.restored:
        archive_raw(directory / "table", store)
        store = directory / "restored"
        restore(directory / "table", store, broker_conf={name: str(size) for name, size in GEOMETRY.items()})
    set_times(store, puts)
    lines = list(questions(case, puts))
    appends = [line.split("\t") for line in appended_lines()]
    (directory / "list").write_text("\n".join([*lines, *("\t".join(words) for words in appends), "state"]))
    try:
        answers = official(case, store, directory / "list")
    except OfficialError as error:
        case.check("the official store", str(error), "")
        return
    compare(case, puts, dict(zip(lines, answers, strict=False)))
    added = answers[len(lines) : len(lines) + len(appends)]
    case.check("appends of the official store", {answer["status"] for answer in added}, {"PUT_OK"})
    case.check("stopped cleanly", answers[-1], {"clean": True})
    if not case.failures:
        read_again(case, store, puts, list(zip(appends, added, strict=True)), answers[-2]["maxOffset"])


def write(case: Case, store: Path, puts: Path) -> list[Put]:
    """Writes a store of ours in a separate process."""
    options = ["--crc"] * case.record_crc + ["--long-topic"] * case.version_5 + ["--kinds"] * case.kinds
    options += ["--several"] * case.several
    # With an up-to-date checkpoint, the official store recovers the smallest part of the log; with an old checkpoint,
    # the largest.
    options += (["--kill"] + ["--settle"] * case.record_crc) * case.killed
    command = [sys.executable, "-m", "tests.conformance.store.write", str(store), str(puts), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != (-signal.SIGKILL if case.killed else 0):
        raise PeerError(f"writing a store failed ({done.returncode}):\n{done.stderr[-2000:]}")
    written: list[Put] = json.loads(puts.read_text())
    return written


def set_times(store: Path, puts: list[Put]) -> None:
    """Sets the modification time of each queue file to the store time of its last entry. RocketMQ 4.9 uses it to choose
    the file for a search by time.
    """
    units = GEOMETRY["mappedFileSizeConsumeQueue"] // 20
    for (topic, queue_id), queue in in_queues(puts).items():
        for file in (store / "consumequeue" / topic / str(queue_id)).glob("*"):
            last = queue[: int(file.name) // 20 + units][-1]
            os.utime(file, ns=(last["storeTimestamp"] * 1_000_000,) * 2)


def questions(case: Case, puts: list[Put]) -> Iterator[str]:
    """Yields the requests for the official store."""
    yield "state"
    for topic, queue_id in in_queues(puts):
        yield f"queue\t{topic}\t{queue_id}"
    for put in puts:
        if "UNIQ_KEY" in put["properties"]:
            yield f"key\t{put['topic']}\t{put['properties']['UNIQ_KEY']}"
    for number in range(7):
        yield f"key\tTopicTest\tk{number}"
    yield "key\tTopicTest\tnobody"
    for put in puts[::9]:
        yield f"record\t{put['physicalOffset']}"
    for (topic, queue_id), queue in in_queues(puts).items():
        for time_ms in times(case, queue):
            yield f"time\t{topic}\t{queue_id}\t{time_ms}"


def times(case: Case, queue: list[Put]) -> Iterator[int]:
    """Yields store times to search for. Times between two messages are included only for versions of the official store
    that find the later message.
    """
    counts = Counter(put["storeTimestamp"] for put in queue)
    for put in queue[:-1]:
        if counts[put["storeTimestamp"]] == 1:
            yield put["storeTimestamp"]
            if case.version_5:
                yield put["storeTimestamp"] + 1


def appended_lines() -> Iterator[str]:
    """Yields lines that make the official store put messages into existing queues and a new queue, enough for several
    segments.
    """
    for number in range(APPENDED):
        topic, queue_id = [("TopicTest", number % 4), ("FromOfficial", 1), ("Orders", 0)][number % 3]
        yield f"put\t{topic}\t{queue_id}\tKEYS\\1official-{number} both\\2TAGS\\1Tag1\\2\tbody {number} {'x' * 4000}"


class OfficialError(RuntimeError):
    """Raised when the official store did not start, or did not handle every line."""


def official(case: Case, store: Path, questions_file: Path) -> list[dict[str, Any]]:
    """Runs the official store in the directory itself; returns its results.

    Raises:
        OfficialError: the store did not start, or did not handle every line.
    """
    classpath = java_program(HERE / "java", case.version)
    java = need("java", "install Java 17 to run the official message store")
    options = GEOMETRY | {
        "storePathRootDir": store,
        "storePathCommitLog": log_paths(store) if case.several else store / "commitlog",
        "enabledAppendPropCRC": str(case.record_crc).lower(),
        "haListenPort": 0,
    }
    if case.kinds:
        options |= KINDS | {"batchTopic": BATCH_TOPIC}
    opens = [f"--add-opens={name}=ALL-UNNAMED" for name in JAVA_OPENS]
    limits = [f"-Drocketmq.broker.diskSpace{name}Ratio=0.99" for name in ("WarningLevel", "CleanForcibly")]
    command = [java, "-Xmx512m", f"-Duser.home={PEERS}", *opens, *limits, "-cp", classpath, "stores.StoreReader"]
    command += [str(questions_file), *(f"{name}={value}" for name, value in options.items())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OfficialError(f"no end after {TIMEOUT_S} s") from error
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(answers) != len(questions_file.read_text().splitlines()) + 1:
        raise OfficialError(f"exit {done.returncode}, {len(answers)} answers: {done.stderr[-1500:]}")
    return answers


def compare(case: Case, puts: list[Put], answers: Answers) -> None:
    """Compares the messages that the official store read with those that were put."""
    end = puts[-1]["physicalOffset"] + puts[-1]["size"]
    case.check("offsets of the log", answers["state"], {"minOffset": 0, "maxOffset": end})
    for line, answer in answers.items():
        kind, *words = line.split("\t")
        if kind == "queue":
            queue = in_queues(puts)[words[0], int(words[1])]
            end = sum(put.get("count", 1) for put in queue)
            case.check(f"{line}: offsets", (answer["minOffset"], answer["maxOffset"]), (0, end))
            found = [without_crc(case, message) for message in answer["messages"]]
            case.check(f"{line}: messages", len(found), len(queue))
            for message, put in zip(found, queue, strict=False):
                case.check(f"{line}: message {put['queueOffset']}", message, as_read(put))
        elif kind == "key":
            wanted = [as_read(put) for put in puts if put["topic"] == words[0] and has_key(put, words[1])]
            found = [without_crc(case, message) for message in answer["messages"]]
            if case.killed:
                # The official store drops the newest index file, then indexes the last record of the previous file a
                # second time.
                found = [message for at, message in enumerate(found) if message not in found[:at]]
            case.check(line, found, wanted)
        elif kind == "record":
            wanted = [as_read(put) for put in puts if put["physicalOffset"] == int(words[0])]
            case.check(line, [without_crc(case, message) for message in answer["messages"]], wanted)
        elif kind == "time":
            queue = in_queues(puts)[words[0], int(words[1])]
            at, first = next((at, put) for at, put in enumerate(queue) if put["storeTimestamp"] >= int(words[2]))
            # In a light queue, a message has a different offset than in its own queue.
            expected = at if words[0].startswith(LMQ_PREFIX) else first["queueOffset"]
            case.check(line, answer["queueOffset"], expected)


def without_crc(case: Case, message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message without its checksum, or a text if the checksum is missing or was not requested."""
    properties = dict(message.get("properties", {}))
    if (properties.pop(CRC_PROPERTY, None) is not None) != case.record_crc:
        return {"wrong": f"{CRC_PROPERTY} of {message}"}
    return message | {"properties": properties}


def has_key(put: Put, key: str) -> bool:
    """Whether a query by key must find the message; rolled back messages are not in the index."""
    properties = put["properties"]
    return put["sysFlag"] & 12 != 12 and key in (
        properties.get("UNIQ_KEY"),
        *properties.get("KEYS", "").split(" "),
    )


def read_again(
    case: Case, path: Path, puts: list[Put], added: list[tuple[list[str], dict[str, Any]]], end: int
) -> None:
    """Opens the directory twice after the official store has appended to it: our store must find the messages of both
    stores, and append again.
    """
    queues = {
        name: [(put["physicalOffset"], put["body"].encode()) for put in queue]
        for name, queue in in_queues(puts).items()
    }
    for words, answer in added:
        queue = queues.setdefault((words[1], int(words[2])), [])
        case.check("queue offset of an append", answer["queueOffset"], len(queue))
        queue.append((answer["physicalOffset"], words[4].encode()))
    clock = ManualClock(LATER_MS)
    for life in ("again", "once more"):
        store = opened(path, case.record_crc, clock, case.kinds, case.several)
        case.check(f"{life}: end of the log", store.max_offset, end)
        case.check(f"{life}: quarantine", (path / "quarantine").exists(), False)
        for (topic, queue_id), expected in queues.items():
            found = [(message.physical_offset, message.body) for message in read(store, topic, queue_id)]
            case.check(f"{life}: {topic} {queue_id}", found, expected)
        for put in puts[::7]:
            key = put["properties"].get("UNIQ_KEY")
            if key and put["sysFlag"] & 12 != 12:
                views = store.query_by_key(put["topic"].encode(), key.encode()).views
                places = [decode_message(view).physical_offset for view in views]
                case.check(f"{life}: key {key}", places, [put["physicalOffset"]])
        for number, (words, answer) in enumerate(added):
            views = store.query_by_key(words[1].encode(), f"official-{number}".encode()).views
            bodies = [decode_message(view).body for view in views]
            case.check(f"{life}: key official-{number}", bodies, [words[4].encode()])
            at = store.offset_by_time(words[1].encode(), int(words[2]), answer["storeTimestamp"], Boundary.LOWER)
            time_ms = store.store_time_at(words[1].encode(), int(words[2]), at)
            case.check(f"{life}: time of official-{number}", time_ms, answer["storeTimestamp"])
        end = append_on(case, store, queues)
        store.shutdown()
        case.check(f"{life}: stopped cleanly", (path / "abort").exists(), False)


def append_on(case: Case, store: MessageStore, queues: dict[tuple[str, int], list[tuple[int, bytes]]]) -> int:
    """Appends several messages; returns the end of the log."""
    for run, _ in zip(runs(long_topic=False), range(9), strict=False):
        results = store.put_messages([store_message(put | {"properties": {}}) for put in run])
        for put, result in zip(run, results, strict=True):
            place = placed(result)
            queue = queues[put["topic"], put["queueId"]]
            if put["sysFlag"] & 12 in (0, 8):
                case.check(f"queue offset of an append to {put['topic']}", place["queueOffset"], len(queue))
                queue.append((place["physicalOffset"], put["body"].encode()))
    store.dispatch()
    return store.max_offset


def read(store: MessageStore, topic: str, queue_id: int) -> list[MessageExt]:
    """Returns all messages of a queue, read by pulls."""
    messages: list[MessageExt] = []
    queue_offset = 0
    while True:
        result = store.get_message(topic.encode(), queue_id, queue_offset, 32, 1 << 20)
        if not result.views:
            return messages
        queue_offset = result.next_offset
        messages += [message for view in result.views for message in decode_messages(view)]


def summary(cases: list[Case], versions: list[str]) -> Table:
    """Prints passed / total for each version, and for each kind of end."""
    table = Table(title="stores of ours in the official message store and back: checks passed / total")
    table.add_column("official store")
    for column in ("clean", "killed"):
        table.add_column(column, justify="right")
    for version in versions:
        cells = []
        for killed in (False, True):
            checks = sum((case.checks for case in cases if (case.version, case.killed) == (version, killed)), Counter())
            colour = "green" if checks[True] and not checks[False] else "red"
            cells.append(f"[{colour}]{checks[True]} / {checks.total()}[/]")
        table.add_row(version, *cells)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
