"""Answers questions about store directories for another process, which may end this one at any time.

The process reads a question a line from standard input, as a JSON object with the member ``ask``, and answers with
lines on standard output: any number of ``{"progress": [DONE, TOTAL]}``, then ``{"result": ...}`` or ``{"error":
TEXT}``. It changes nothing. A broker may use the stores meanwhile.

Each field of an item has the ``link`` to the item that its value points to, so that one can follow a message from the
index to the log, to its queue, and back.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from rucola.common.json_library import orjson
from rucola.common.message_const import KEY_SEPARATOR, KEYS, UNIQ_KEY
from rucola.errors import RucolaError, StoreDamagedError
from rucola.formats.annotate import AnnotatedField
from rucola.formats.consume_queue_ext import is_address
from rucola.formats.index_file import key_hash
from rucola.runtime.files import Files
from rucola.store.doctor.census import SegmentPart, count_in, segments_of
from rucola.store.inspect.hexdump import Dump, Hexdump
from rucola.store.inspect.summary import queue_infos, store_info
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.places import is_directory_name
from rucola.store.verify.check import verify

Progress = Callable[[int, int], None]
Link = dict[str, str]
DATA_BYTES_MAX: Final = 4096
"""Bytes of a field that an answer shows."""
QUEUES_MAX: Final = 500
FINDINGS_MAX: Final = 1000
_STEPS_A_CHECK: Final = 200


def main() -> None:
    """Answers until standard input ends."""
    for line in sys.stdin.buffer:
        try:
            _say({"result": answer(orjson.loads(line), lambda done, total: _say({"progress": [done, total]}))})
        except RucolaError as error:
            _say({"error": str(error)})


def answer(question: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The answer to a question.

    Args:
        question: ``ask`` (``summary``, ``item``, ``key``, ``verify`` or ``shares``) and ``store``, the directory, with
            what the kind of question needs.
        progress: called with the work done and the whole work.

    Raises:
        RucolaError: there is no such store or item, or it cannot be read.
    """
    ask, store = question["ask"], question["store"]
    if ask == "summary":
        return _summary(store)
    if ask == "item":
        return _item(Hexdump(Files(), store), question)
    if ask == "key":
        return _key(store, question["topic"], question["key"])
    return _verified(store, progress) if ask == "verify" else _shares(store, progress)


def _say(message: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def _summary(path: str) -> dict[str, Any]:
    files = Files()
    store = OfflineStore(path, files)
    try:
        info = store_info(store, files)
        queues = queue_infos(store, times=False)
        segments = store.log_segments()
    finally:
        store.close()
    return {
        "path": info.path,
        "writer": info.writer,
        "in_use": info.lock_held,
        "size": info.size_bytes,
        "min_offset": info.min_offset,
        "end_offset": info.end_offset,
        "messages": info.messages,
        "topics": info.topics,
        "lite_topics": max(info.lite_topics, info.lite_queues),
        "segments": [{"file": _text(file), "start": start, "size": size} for file, start, size in segments],
        "index_files": [
            {"name": one.name, "entries": max(one.header.index_count - 1, 0), "slots": one.slots}
            for one in info.index_files
        ],
        "queues": [
            {
                "topic": _text(one.topic),
                "queue": one.queue_id,
                "min_offset": one.min_offset,
                "max_offset": one.max_offset,
            }
            for one in (queue.range for queue in queues[:QUEUES_MAX])
        ],
        "queue_count": len(queues),
        "timer": files.exists(f"{info.path}/timerwheel"),
    }


def _item(items: Hexdump, wanted: Mapping[str, Any]) -> dict[str, Any]:
    kind, number = wanted["kind"], int(wanted["number"])
    topic, queue, name = wanted["topic"], int(wanted["queue"]), wanted["name"]
    if kind in ("unit", "ext") and not is_directory_name(topic):
        raise StoreDamagedError("consumequeue", 0, f"{topic!r} is no topic", "give the name of a topic")
    makers: dict[str, Callable[[], Dump]] = {
        "record": lambda: items.record(number),
        "unit": lambda: items.unit(topic, queue, number),
        "ext": lambda: items.ext_unit(topic, queue, number),
        "index-header": lambda: items.index_header(name),
        "index-slot": lambda: items.index_slot(name, number),
        "index-entry": lambda: items.index_entry(name, number),
        "checkpoint": items.checkpoint,
        "timer-unit": lambda: items.timer_unit(number),
        "timer-slot": lambda: items.timer_slot(number),
        "timer-checkpoint": items.timer_checkpoint,
    }
    dump = makers[kind]()
    values = {field.name: field.value for field in dump.fields}
    fields = [
        {
            "position": field.position,
            "data": field.data[:DATA_BYTES_MAX].hex(),
            "size": len(field.data),
            "name": _text(field.name),
            "value": None if field.value is None else _text(str(field.value)),
            "meaning": _text(field.meaning),
            "link": _link(wanted, field, values),
        }
        for field in dump.fields
    ]
    return {"file": _text(dump.path), "title": _text(dump.title), "fields": fields}


def _link(wanted: Mapping[str, Any], field: AnnotatedField, values: Mapping[str, int | str | None]) -> Link | None:
    """The item that a field points to."""
    kind, value = wanted["kind"], field.value
    if kind == "record":
        return _link_of_record(field, values, int(wanted["number"]))
    if kind == "unit" and field.name == "tags_code" and isinstance(value, int) and is_address(value):
        return {"kind": "ext", "topic": wanted["topic"], "queue": str(wanted["queue"]), "number": str(wanted["number"])}
    if not isinstance(value, int) or value < 0:
        return None
    if field.name == "physical_offset":
        return {"kind": "record", "number": str(value)}
    if field.name in ("first_position", "last_position", "previous_position"):
        return {"kind": "timer-unit", "number": str(value)}
    if field.name in ("entry", "previous") and value > 0:
        return {"kind": "index-entry", "name": wanted["name"], "number": str(value)}
    if field.name == "index_count" and value > 1:
        return {"kind": "index-entry", "name": wanted["name"], "number": str(value - 1)}
    if field.name in ("begin_physical_offset", "end_physical_offset"):
        return {"kind": "record", "number": str(value)}
    return None


def _link_of_record(field: AnnotatedField, values: Mapping[str, int | str | None], number: int) -> Link | None:
    topic, name = values.get("topic"), field.name
    if name == "total_size" and isinstance(field.value, int) and field.value > 0:
        return {"kind": "record", "number": str(number + field.value)}
    if name == "queue_offset" and isinstance(topic, str):
        return {"kind": "unit", "topic": topic, "queue": str(values["queue_id"]), "number": str(field.value)}
    if name == "prepared_transaction_offset" and isinstance(field.value, int) and field.value > 0:
        return {"kind": "record", "number": str(field.value)}
    if name in (f"property {KEYS}", f"property {UNIQ_KEY}") and isinstance(topic, str) and field.value:
        return {"kind": "key", "topic": topic, "key": str(field.value).split(KEY_SEPARATOR)[0]}
    return None


def _key(path: str, topic: str, key: str) -> dict[str, Any]:
    """Where the index has a key: the slot of its hash in each index file."""
    files = Files()
    store = OfflineStore(path, files)
    try:
        info = store_info(store, files)
    finally:
        store.close()
    number = key_hash(topic.encode("utf-8", "surrogateescape"), key.encode("utf-8", "surrogateescape"))
    places = [
        {
            "name": one.name,
            "slot": number % one.slots,
            "slots": one.slots,
            "entries": max(one.header.index_count - 1, 0),
        }
        for one in info.index_files
        if one.slots
    ]
    return {"hash": number, "places": places}


def _verified(path: str, progress: Progress) -> dict[str, Any]:
    report = verify(path, progress=_thinned(progress))
    return {
        "records": report.records,
        "units": report.units,
        "index_entries": report.index_entries,
        "total": sum(report.counts.values()),
        "findings": [
            {name: _text(value) if isinstance(value, str) else value for name, value in asdict(one).items()}
            for one in report.findings[:FINDINGS_MAX]
        ],
        "notes": [_text(note) for note in report.notes],
    }


def _shares(path: str, progress: Progress) -> dict[str, Any]:
    parts = segments_of([path])
    found = []
    for done, part in enumerate(parts):
        progress(done, len(parts))
        found.append(_share(part))
    return {"segments": found}


def _share(part: SegmentPart) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for tally in count_in(part)[0]:
        sizes[_text(tally.topic)] += tally.bytes
        messages[_text(tally.topic)] += tally.messages
    topics = [{"topic": topic, "bytes": size, "messages": messages[topic]} for topic, size in sizes.most_common()]
    return {"start": part.start, "topics": topics}


def _thinned(progress: Progress) -> Progress:
    """Reports only when a further part of ``_STEPS_A_CHECK`` is done."""
    last = -1

    def report(done: int, total: int) -> None:
        nonlocal last
        step = done * _STEPS_A_CHECK // max(total, 1)
        if step != last:
            last = step
            progress(done, total)

    return report


def _text(text: str) -> str:
    """A text that JSON can hold; names in a store may be no Unicode."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


if __name__ == "__main__":
    main()
