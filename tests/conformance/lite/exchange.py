"""Lite topics in stores that change hands: ``python -m tests.conformance.lite.exchange``.

*Ours*: our store writes lite topics, some of which are deleted and used again. It is exported for queues in files, or
left as it is for queues in RocksDB. The official broker opens it, tells the offsets of every lite topic, and appends;
then our store opens it again. Either way, as long as the official broker has the store, deleted messages are back in
lite topics that were used again. Where it builds queues in RocksDB, it leaves out the record at position 0 of the log:
``CommitLog#recoverNormally`` dispatches what is *above* the last position in the queues, which is 0 without queues.
*Theirs*: the official broker gets the messages, and our store opens what it has left.

Exit status: 0 if all checks passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.lite.agents import Admin
from tests.conformance.lite.record import KINDS, VERSION
from tests.conformance.lite.recording import Recording
from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers
from tools.peers.wire import SEND_MESSAGE_V2, Link

from rucola.common.message import StoreMessage
from rucola.formats.light_queue import lite_topic
from rucola.formats.message import decode_messages
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor.export_queues import export_queues
from rucola.store.message_store import MessageStore

PARENT = "agents"
NAMES = {"file": 10_000, "rocksdb": 100_000}
SETTINGS: dict[str, object] = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "maxLmqConsumeQueueNum": 1_000_000,
    "autoCreateTopicEnable": "true",
    "messageIndexEnable": "false",
}
UPDATE_TOPIC, PULL, PARENT_INFO, LITE_INFO = 17, 11, 200075, 200076
HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
DELETED_EVERY, LONG_EVERY, READ_EVERY = 50, 10, 101
LONG = 3
PATIENCE_S = 120.0
SHOWN = 5
Ranges = dict[str, tuple[int, int]]
"""First and next offset of each lite topic."""


@dataclass
class Checks:
    """Counts checks; keeps the first that failed."""

    counts: Counter[bool] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def same(self, what: str, found: object, expected: object) -> None:
        """Counts one check."""
        self.counts[found == expected] += 1
        if found != expected:
            self.failures.append(f"{what}: found {str(found)[:300]}, expected {str(expected)[:300]}")

    def ranges(self, what: str, found: Ranges, expected: Ranges) -> None:
        """Counts a check for each lite topic."""
        for name in found.keys() | expected.keys():
            self.same(f"{what}: {name}", found.get(name), expected.get(name))


class Broker(Link):
    """A connection to a broker, with the bodies of its responses."""

    def _receive(self) -> dict[str, Any]:
        frame = self._read(int.from_bytes(self._read(4), "big"))
        end = 4 + int.from_bytes(frame[1:4], "big")
        return {"extFields": {}, **json.loads(frame[4:end]), "content": frame[end:]}

    def make_parent(self) -> None:
        """Makes the parent topic."""
        fields = {
            "topic": PARENT, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "+message.type=LITE",
        }  # fmt: skip
        answer = self.request(UPDATE_TOPIC, fields)
        if answer["code"] != 0:
            raise PeerError(f"the parent topic could not be made: {answer}")

    def send(self, name: str, body: str) -> None:
        """Sends a message to a lite topic."""
        fields = {"a": "exchange", "b": PARENT, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": int(time.time() * 1000),
                  "h": 0, "i": f"__LITE_TOPIC\x01{name}\x02", "j": 0, "k": "false", "m": "false"}  # fmt: skip
        answer = self.request(SEND_MESSAGE_V2, fields, body.encode())
        if answer["code"] != 0:
            raise PeerError(f"a message to {name} was refused: {answer}")

    def range(self, name: str) -> tuple[int, int]:
        """The offsets of a lite topic."""
        answer = self.request(LITE_INFO, {"parentTopic": PARENT, "liteTopic": name})
        found = json.loads(answer["content"] or b"{}").get("topicOffset") or {}
        return found.get("minOffset", -1), found.get("maxOffset", -1)

    def bodies(self, name: str, first: int) -> list[str]:
        """The messages of a lite topic from an offset on, by pulls, each where the one before said."""
        fields = {"consumerGroup": "exchange", "topic": lite_topic(f"{PARENT}${name}".encode()).decode(), "queueId": 0,
                  "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
                  "subscription": "*", "subVersion": 0, "expressionType": "TAG"}  # fmt: skip
        found: list[str] = []
        while True:
            answer = self.request(PULL, fields | {"queueOffset": first})
            following = int(answer["extFields"].get("nextBeginOffset", first))
            found += [] if answer["code"] else [one.body.decode() for one in decode_messages(answer["content"])]
            if following <= first:
                return found
            first = following

    def wait_for(self, names: int) -> int:
        """Waits until the parent has so many lite topics, or no more come; returns their number."""
        deadline, found, before = time.monotonic() + PATIENCE_S, 0, -1
        while found < names and time.monotonic() < deadline and found != before:
            time.sleep(3 if before >= 0 else 0)
            before = found
            answer = self.request(PARENT_INFO, {"topic": PARENT})
            found = json.loads(answer["content"] or b"{}").get("liteTopicCount", 0)
        return found


def name_of(number: int) -> str:
    """The name of a lite topic."""
    return f"session-{number:06d}"


def messages(names: int) -> Iterator[tuple[str, str]]:
    """Lite topic and body of each message, one for each name, then more for some."""
    for turn in range(LONG):
        for number in range(0, names, LONG_EVERY if turn else 1):
            yield name_of(number), f"{turn} of {number}"


def sent(names: int) -> Ranges:
    """The offsets after ``messages``."""
    counts = Counter(name for name, _ in messages(names))
    return {name: (0, count) for name, count in counts.items()}


def opened(path: Path) -> MessageStore:
    """Opens a store of ours."""
    config = MessageStoreConfig(
        store_path_root_dir=str(path), enable_lmq=True, enable_multi_dispatch=True, message_index_enable=False
    )
    store = MessageStore(config, Files(), SystemClock())
    store.load()
    store.start()
    store.dispatch()
    return store


def put(store: MessageStore, name: str, body: str, number: int) -> None:
    """Puts a message into a lite topic of our store."""
    light = lite_topic(f"{PARENT}${name}".encode()).decode()
    properties = f"__LITE_TOPIC\x01{name}\x02INNER_MULTI_DISPATCH\x01{light}\x02".encode()
    store.put_message(StoreMessage(PARENT.encode(), number % 4, body.encode(), properties, 1, HOST))
    if number % 256 == 0:
        store.dispatch()


def ranges_of(store: MessageStore, names: int) -> Ranges:
    """The offsets of all lite topics in our store."""
    topics = ((name_of(number), lite_topic(f"{PARENT}${name_of(number)}".encode())) for number in range(names))
    return {name: store.queue_range(topic, 0) for name, topic in topics}


def write(path: Path, names: int) -> tuple[Ranges, Ranges]:
    """Writes a store of ours; returns the offsets with and without its deletions."""
    store = opened(path)
    for number, (name, body) in enumerate(messages(names)):
        put(store, name, body, number)
    store.dispatch()
    expected = sent(names)
    doomed = [name_of(number) for number in range(0, names, DELETED_EVERY)]
    store.delete_lite([f"{PARENT}${name}".encode() for name in doomed])
    store._keeper.sync_queues()
    store.dispatch()
    forgotten = dict(expected)
    for number, name in enumerate(doomed):
        put(store, name, "after its deletion", number)
        expected[name] = (expected[name][1], expected[name][1] + 1)
        forgotten[name] = (0, expected[name][1])
    store.dispatch()
    store.shutdown()
    return expected, forgotten


def ours(kind: str, names: int, path: Path) -> Checks:
    """Our store, opened by the official broker, and by ours again."""
    checks = Checks()
    began_s = time.monotonic()
    kept, forgotten = write(path, names)
    tell(f"{kind}: our store wrote {names} lite topics", began_s)
    began_s = time.monotonic()
    if kind == "file":
        found = export_queues(str(path))
        deleted = -(-names // DELETED_EVERY)
        checks.same("exported", (found.lite_topics, found.empty_topics, found.deleted_back), (names, 0, deleted))
        tell(f"{kind}: exported {found.units} units", began_s)
    expected = forgotten | ({name_of(0): (1, forgotten[name_of(0)][1])} if kind == "rocksdb" else {})
    began_s = time.monotonic()
    appended = [name_of(number) for number in range(0, names, READ_EVERY)]
    with (
        JavaServers("async", path, VERSION, {**SETTINGS, "storeType": KINDS[kind]}) as servers,
        Broker(servers.broker) as broker,
    ):
        broker.make_parent()
        checks.same("lite topics that the official broker counts", broker.wait_for(names), names)
        tell(f"{kind}: the official broker opened it", began_s)
        began_s = time.monotonic()
        checks.ranges(
            "official offsets", {name_of(number): broker.range(name_of(number)) for number in range(names)}, expected
        )
        tell(f"{kind}: the official broker told the offsets", began_s)
        bodies: dict[str, list[str]] = {}
        for name, body in messages(names):
            bodies.setdefault(name, []).append(body)
        for number, name in ((number, name_of(number)) for number in range(0, names, READ_EVERY)):
            all_of = bodies[name] + ["after its deletion"] * (number % DELETED_EVERY == 0)
            checks.same(f"messages of {name}", broker.bodies(name, expected[name][0]), all_of[expected[name][0] :])
            broker.send(name, "appended")
        with Admin(servers.broker, servers.namesrv, VERSION, Recording()) as admin:
            for name in (name_of(0), name_of(1), name_of(names - 1)):
                printed = admin.run("getLiteTopicInfo", "-p", PARENT, "-l", name)
                checks.same(f"mqadmin tells of {name}", _shows(printed, broker.range(name)), True)
        checks.ranges(
            "official offsets after an append",
            {name: broker.range(name) for name in appended},
            {name: (expected[name][0], expected[name][1] + 1) for name in appended},
        )
    began_s = time.monotonic()
    store = opened(path)
    tell(f"{kind}: our store opened it again", began_s)
    expected = kept | {name: (kept[name][0], kept[name][1] + 1) for name in appended}
    checks.ranges("our offsets at the end", ranges_of(store, names), expected)
    store.shutdown()
    return checks


def theirs(kind: str, names: int, path: Path) -> Checks:
    """A store of the official broker, opened by ours."""
    checks = Checks()
    began_s = time.monotonic()
    with (
        JavaServers("async", path, VERSION, {**SETTINGS, "storeType": KINDS[kind]}) as servers,
        Broker(servers.broker) as broker,
    ):
        broker.make_parent()
        for name, body in messages(names):
            broker.send(name, body)
        tell(f"{kind}: the official broker got {names} lite topics", began_s)
        checks.same("lite topics that the official broker counts", broker.wait_for(names), names)
    began_s = time.monotonic()
    store = opened(path)
    tell(f"{kind}: our store opened it", began_s)
    checks.ranges("our offsets", ranges_of(store, names), sent(names))
    for number in range(0, names, READ_EVERY):
        topic = lite_topic(f"{PARENT}${name_of(number)}".encode())
        found = store.get_message(topic, 0, 0, 32, 1 << 20)
        bodies = [message.body.decode() for view in found.views for message in decode_messages(view)]
        turns = range(LONG if number % LONG_EVERY == 0 else 1)
        checks.same(f"messages of {name_of(number)}", bodies, [f"{turn} of {number}" for turn in turns])
    put(store, name_of(0), "ours", 1)
    store.dispatch()
    checks.same("offset of our append", ranges_of(store, 1)[name_of(0)], (0, LONG + 1))
    store.shutdown()
    return checks


def _shows(printed: str, offsets: tuple[int, int]) -> bool:
    """Whether the table of ``getLiteTopicInfo`` has these offsets."""
    return any(set(map(str, offsets)) <= set(line.replace("#", " ").split()) for line in printed.splitlines())


def tell(what: str, began_s: float) -> None:
    """Prints how long something took."""
    print(f"{what}: {time.monotonic() - began_s:.1f} s", flush=True)


def main(arguments: list[str]) -> int:
    """Runs both ways with each kind of consume queues."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.lite.exchange", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="kind of the consume queues; both by default")
    parser.add_argument("--way", action="append", choices=["ours", "theirs"], help="whose store; both by default")
    parser.add_argument(
        "--names", type=int, help="number of lite topics; by default 10,000 in files, 100,000 in RocksDB"
    )
    options = parser.parse_args(arguments)
    failed = False
    for kind in options.kind or KINDS:
        for way in options.way or ("ours", "theirs"):
            with TemporaryDirectory(prefix="rucola-exchange-") as directory:
                play = ours if way == "ours" else theirs
                try:
                    checks = play(kind, options.names or NAMES[kind], Path(directory) / "store")
                except PeerError as error:
                    print(f"exchange: {error}", file=sys.stderr)
                    return 2
            print(f"{kind}, {way}: {checks.counts[True]} / {checks.counts.total()} checks passed", flush=True)
            for failure in checks.failures[:SHOWN]:
                print(f"  {failure}")
            failed = failed or bool(checks.failures) or not checks.counts[True]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
