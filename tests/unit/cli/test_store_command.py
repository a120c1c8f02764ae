"""Output and exit codes of ``rucola store``."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from tests.golden.loader import unpack
from tests.unit.store.stores import contents, opened, with_topics
from tests.unit.store.stores import fill as put

from rucola.cli.main import main
from rucola.cli.message_lines import json_lines
from rucola.common.hosts import host_text
from rucola.common.message import StoreMessage
from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.timer.timer_log import WaitingUnit
from rucola.store.timer.timer_store import TimerGeometry, TimerQueue, TimerStore

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
START_MS = 1_700_000_000_000
"""Time at which the clock of ``opened`` begins; it advances by a millisecond with each reading."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    writer = opened(path)
    put(writer, 40)
    special = StoreMessage(b"Odd", 0, b"\x1b[31mred", b"color\x01blue\x02nasty\x01\x1b[0m[bold]\x02", 1, HOST)
    writer.put_message(special)
    writer.dispatch()
    writer.shutdown()
    with_topics(path)
    return path


def lines(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert main(["store", *map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def text(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["store", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def numbers(found: list[dict[str, Any]]) -> list[int]:
    """Returns the numbers of the messages that ``put`` wrote."""
    return [int(b64decode(message["body"]).split()[0]) for message in found]


def test_info(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (facts,) = lines(capsys, "info", store)
    assert facts["path"] == str(store)
    assert (facts["writer"], facts["abort"], facts["lock_held"]) == ("Rucola", False, False)
    assert (facts["segments"], facts["segment_bytes"], facts["min_offset"]) == (1, 65536, 0)
    assert (facts["topics"], facts["queues"], facts["messages"], facts["queue_segment_bytes"]) == (3, 5, 41, 2000)
    assert facts["watermark"]["end_offset"] == facts["end_offset"] == facts["watermark"]["flushed_offset"]
    assert facts["watermark"]["writers"] == [{"physical_offset": 0, "writer": 1}]
    assert facts["checkpoint"]["logics_msg_timestamp_ms"] > START_MS
    (index,) = facts["index_files"]
    assert (index["slots"], index["entries_max"], index["header"]["index_count"]) == (100, 400, 121)
    assert facts["size_bytes"] == sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    shown = text(capsys, "info", store)
    assert "Rucola" in shown and "41" in shown and "100 slots, 400 entries" in shown


def test_ls(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "ls", store)
    assert [(queue["topic"], queue["queue_id"], queue["count"]) for queue in found] == [
        ("Odd", 0, 1),
        *((topic, queue, 10) for topic in ("T0", "T1") for queue in (0, 1)),
    ]
    assert all(START_MS <= queue["first_timestamp_ms"] <= queue["last_timestamp_ms"] for queue in found)
    assert [queue["topic"] for queue in lines(capsys, "ls", store, "--topic", "T1")] == ["T1", "T1"]
    assert lines(capsys, "ls", store, "--topic", "none") == []
    assert "T0" in text(capsys, "ls", store)


def test_lite_topics_are_folded_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = opened(tmp_path, enable_lmq=True, enable_multi_dispatch=True)
    for number in range(30):
        names = b"INNER_MULTI_DISPATCH\x01%%LMQ%%$T$s%d\x02" % number
        writer.put_message(StoreMessage(b"T", 0, b"body", names, 1, HOST))
    writer.dispatch()
    writer.shutdown()
    assert "and 30 lite topics in rucola-lite" in text(capsys, "ls", tmp_path)
    assert "lite topics" not in text(capsys, "ls", tmp_path, "--topic", "T")
    assert len(lines(capsys, "ls", tmp_path)) == 1
    assert lines(capsys, "info", tmp_path)[0]["lite_topics"] == 30
    assert "30 in rucola-lite, for RocketMQ: rucola store export-queues" in text(capsys, "info", tmp_path)
    assert lines(capsys, "export-queues", tmp_path) == [
        {"lite_topics": 30, "units": 30, "empty_topics": 0, "offsets": 0}
    ]
    assert len(lines(capsys, "ls", tmp_path)) == 31
    with_topics(tmp_path)
    assert main(["store", "verify", str(tmp_path)]) == 0


def test_cat_has_the_documented_keys(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "cat", store, "--topic", "T0")
    assert list(found[0]) == [
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "size",
        "flag",
        "sys_flag",
        "born_timestamp_ms",
        "born_host",
        "store_timestamp_ms",
        "store_host",
        "reconsume_times",
        "prepared_transaction_offset",
        "properties",
        "body",
    ]
    assert found[0]["properties"]["KEYS"] == "key-0 all"
    assert found[0]["born_host"] == "127.0.0.1:12345"
    assert numbers(found) == [*range(0, 40, 4), *range(2, 40, 4)]


def test_cat_takes_queue_offset_and_a_limit(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers(lines(capsys, "cat", store, "--topic", "T0", "--queue", "1", "--offset", "8")) == [34, 38]
    assert numbers(lines(capsys, "cat", store, "--topic", "T0", "--offset", "9")) == [36, 38]
    assert numbers(lines(capsys, "cat", store, "--topic", "T0", "--max", "3")) == [0, 4, 8]


def test_bodies_are_given_as_stored_and_shown_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = unpack("bodies", tmp_path)
    topic = case.puts[0]["message"]["topic"]
    sizes = {entry["physicalOffset"]: entry["body"]["length"] for entry in case.expect["log"] if "body" in entry}
    found = lines(capsys, "cat", tmp_path, "--topic", topic)
    assert {message["physical_offset"]: len(b64decode(message["body"])) for message in found} == sizes
    assert text(capsys, "cat", tmp_path, "--topic", topic).count(f"{topic}/") == len(sizes)


def test_content_of_a_store_cannot_act_on_the_terminal(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "cat", store, "--topic", "Odd")
    assert "\x1b" not in shown
    assert "\\x1b[0m[bold]" in shown
    assert "8 bytes 1b 5b" in shown


@pytest.mark.parametrize("road", [(), ("--no-index",)])
def test_grep_by_key(road: tuple[str, ...], store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers(lines(capsys, "grep", store, "--key", "key-7", *road)) == [7]
    assert numbers(lines(capsys, "grep", store, "--key", "ID00000012", *road)) == [12]
    assert numbers(lines(capsys, "grep", store, "--key", "all", *road)) == list(range(40))
    assert numbers(lines(capsys, "grep", store, "--key", "all", "--topic", "T1", "--tag", "Tag0", *road)) == [
        number for number in range(1, 40, 2) if number % 3 == 0
    ]
    assert lines(capsys, "grep", store, "--key", "key", *road) == []
    assert numbers(lines(capsys, "grep", store, "--key", "all", "--max", "2", *road)) == [0, 1]


def test_a_key_of_the_same_hash_is_no_hit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = opened(tmp_path)
    for key in (b"Aa", b"BB"):  # equal hash codes, whatever the topic before them
        writer.put_message(StoreMessage(b"T", 0, key, b"KEYS\x01" + key + b"\x02", 1, HOST))
    writer.dispatch()
    writer.shutdown()
    (found,) = lines(capsys, "grep", tmp_path, "--key", "BB")
    assert b64decode(found["body"]) == b"BB"


def test_grep_by_body_property_tag_and_time(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers(lines(capsys, "grep", store, "^1[0-3] ")) == [10, 11, 12, 13]
    assert numbers(lines(capsys, "grep", store, "^1[0-3] ", "--queue", "0")) == [12, 13]
    assert numbers(lines(capsys, "grep", store, "--tag", "Tag1", "--topic", "T0", "--max", "2")) == [4, 10]
    assert len(lines(capsys, "grep", store, "--property", "color=^bl")) == 1
    assert lines(capsys, "grep", store, "--property", "color=BL") == []
    assert len(lines(capsys, "grep", store, "--property", "color=BL", "-i")) == 1
    assert len(lines(capsys, "grep", store, "RED", "--ignore-case")) == 1
    times = [message["store_timestamp_ms"] for message in lines(capsys, "grep", store)]
    assert len(times) == 41
    since, until = str(times[5]), str(times[7])
    assert numbers(lines(capsys, "grep", store, "--since", since, "--until", until)) == [5, 6, 7]
    assert lines(capsys, "grep", store, "--since", "2023-11-14T22:13:21") == []
    assert len(lines(capsys, "grep", store, "--until", "2023-11-15T00:13:21+02:00")) == 41
    key_in_time = ("--key", "all", "--since", since, "--until", until)
    assert numbers(lines(capsys, "grep", store, *key_in_time)) == [5, 6, 7]


def test_grep_goes_over_damage_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack("killed_bad_magic", tmp_path)
    assert main(["store", "grep", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 63
    assert "damage: commitlog/00000000000000008192, position 4560" in output.err


def test_hexdump(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = lines(capsys, "cat", store, "--topic", "T1")[0]
    (record,) = lines(capsys, "hexdump", "record", store, str(second["physical_offset"]))
    assert sum(len(field["data"]) // 2 for field in record["fields"]) == second["size"]
    assert record["fields"][0] == {
        "position": second["physical_offset"],
        "data": second["size"].to_bytes(4, "big").hex(),
        "name": "total_size",
        "value": second["size"],
        "meaning": "",
    }
    (unit,) = lines(capsys, "hexdump", "queue", store, "T1/0/0")
    assert [field["value"] for field in unit["fields"][:2]] == [second["physical_offset"], second["size"]]
    name = next((store / "index").iterdir()).name
    (header,) = lines(capsys, "hexdump", "index", store, name)
    assert header["fields"][-1]["value"] == 121
    (entry,) = lines(capsys, "hexdump", "index", store, name, "--entry", "4")
    assert entry["fields"][1]["value"] == second["physical_offset"]
    heads = [lines(capsys, "hexdump", "index", store, name, "--slot", str(n))[0]["fields"][0] for n in range(0, 100, 9)]
    assert any(head["value"] for head in heads)
    (checkpoint,) = lines(capsys, "hexdump", "checkpoint", store)
    assert len(checkpoint["fields"]) == 5
    shown = text(capsys, "hexdump", "record", store, "0")
    assert "total_size" in shown and "2023-11-14 22:13:20" in shown and "property KEYS" in shown


def test_batch_queues_their_units_and_extensions_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, ext = tmp_path / "batch", tmp_path / "ext"
    unpack("inner_batch_cq", batch)
    unpack("queue_ext_bitmap", ext)
    listed = [(line["queue_id"], line["min_offset"], line["max_offset"]) for line in lines(capsys, "ls", batch)]
    assert listed == [(0, 0, 11), (1, 0, 1), (2, 0, 2)]
    shown = lines(capsys, "cat", batch, "--topic", "BatchTopic", "--queue", "0")
    assert [message["queue_offset"] for message in shown] == [0, 3, 8, 9]
    assert lines(capsys, "info", batch)[0]["messages"] == 14
    (unit,) = lines(capsys, "hexdump", "queue", batch, "BatchTopic/0/7")
    assert [field["value"] for field in unit["fields"]] == [409, 607, 2598919, 1700000000124, 3, 5, -1, 0]
    (unit,) = lines(capsys, "hexdump", "queue", ext, "Ext/0/1")
    assert unit["fields"][2]["meaning"] == "address of the extension unit at position 47"
    (unit,) = lines(capsys, "hexdump", "queue-ext", ext, "Ext/0/2")
    assert [field["value"] for field in unit["fields"]] == [47, 2598903, 1700000000127, 27, None]
    assert unit["fields"][-1]["meaning"] == "3 bits set"
    assert main(["store", "hexdump", "queue", str(batch), "BatchTopic/0/11"]) == 5
    assert main(["store", "hexdump", "queue-ext", str(batch), "BatchTopic/0/0"]) == 5


def test_hexdump_of_a_large_field_is_cut_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = opened(tmp_path)
    writer.put_message(StoreMessage(b"T", 0, b"x" * 5000, b"", 1, HOST))
    writer.shutdown()
    assert "4488 more bytes" in text(capsys, "hexdump", "record", tmp_path, "0")
    (dump,) = lines(capsys, "hexdump", "record", tmp_path, "0")
    assert "78" * 5000 in [field["data"] for field in dump["fields"]]


def test_hexdump_of_a_log_elsewhere(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_copy(store, tmp_path / "store")
    (tmp_path / "store/commitlog").rename(tmp_path / "log")
    (record,) = lines(capsys, "hexdump", "record", tmp_path / "store", "0", "--commit-log", tmp_path / "log")
    assert Path(record["file"]).parent == tmp_path / "log"
    assert main(["store", "hexdump", "record", str(tmp_path / "store"), "0"]) == 5


def test_verify(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (report,) = lines(capsys, "verify", store)
    assert (report["clean"], report["findings"], report["records"]) == (True, [], 41)
    assert "no findings" in text(capsys, "verify", store)
    unpack("killed_cq_behind", tmp_path)
    assert main(["store", "verify", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"] == {"record_without_unit": 5, "table": 1}
    finding = report["findings"][0]
    assert (finding["kind"], finding["position"], finding["count"]) == ("record_without_unit", 120, 5)
    assert finding["file"] == "consumequeue/Newest/1/00000000000000000000"
    assert main(["store", "verify", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "record_without_unit" in shown and "6 findings" in shown and "was not stopped" in shown


def test_values_that_no_message_has_find_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command gets more messages than can exist, and words that are not UTF-8, as the shell passes them."""
    assert main(["store", "cat", str(store), "--topic", "\udcff", "--max", "9" * 20]) == 2
    assert r"option --topic: '\udcff' is not allowed" in capsys.readouterr().err
    for option in ("--key", "--tag", "--topic"):
        assert main(["store", "grep", str(store), option, "\udcff", "--max", "9" * 20]) == 0
    assert capsys.readouterr().out == ""


USAGE = [
    ["cat", "DIR"],
    ["hexdump", "DIR"],
    ["hexdump", "record", "DIR"],
    ["hexdump", "record", "DIR", "first"],
    ["hexdump", "checkpoint", "DIR", "0"],
    ["hexdump", "index", "DIR", "name", "--slot", "1", "--entry", "1"],
    ["hexdump", "queue", "DIR", "T0"],
    ["grep", "DIR", "("],
    ["grep", "DIR", "--property", "color"],
    ["grep", "DIR", "--since", "yesterday"],
    ["verify", "DIR", "--unknown"],
    ["unknown", "DIR"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_is_2_and_one_line(arguments: list[str], store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", *(argument.replace("DIR", str(store)) for argument in arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("rucola: ") and output.err.count("\n") == 1


def test_an_unreadable_store_ends_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack("refused_stray_file", tmp_path / "stray")
    (tmp_path / "stray/commitlog/notes.txt").rename(tmp_path / "stray/commitlog" / f"{7:020d}")
    (tmp_path / "file").write_text("no directory")
    (tmp_path / "empty").mkdir()
    for path, code in ((tmp_path / "none", 2), (tmp_path / "file", 2), (tmp_path / "empty", 5)):
        for command in (["info"], ["ls"], ["cat", "--topic", "T"], ["grep"], ["verify"]):
            assert main(["store", command[0], str(path), *command[1:]]) == code, (path, command)
            assert capsys.readouterr().err.count("\n") == 1
        assert main(["store", "hexdump", "record", str(path), "0"]) == code, path
        assert capsys.readouterr().err.count("\n") == 1
    for command in (["info"], ["ls"], ["cat", "--topic", "T"], ["grep"]):
        assert main(["store", command[0], str(tmp_path / "stray"), *command[1:]]) == 5
    assert main(["store", "hexdump", "record", str(tmp_path / "stray"), "0"]) == 0
    assert main(["store", "hexdump", "record", str(tmp_path / "stray"), "99999999"]) == 5


def test_help_names_defaults_that_are_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "cat", "--help"]) == 0
    assert "[default: all, one after another]" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("info", "ls", "cat", "grep", "hexdump", "verify"))
    assert main(["--help"]) == 0
    assert "store" in capsys.readouterr().out


def test_verify_misses_the_topic_table(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(copytree(store, tmp_path / "copy", ignore=ignore_patterns("config")))
    assert main(["store", "verify", str(copy)]) == 1
    shown = capsys.readouterr().out
    assert "there is no such directory, but there are 3 topics with queues or messages" in shown
    assert "1 findings" in shown


def test_no_command_changes_anything(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, times = contents(store), [file.stat().st_mtime_ns for file in sorted(store.rglob("*"))]
    test_info(store, capsys)
    test_ls(store, capsys)
    test_cat_has_the_documented_keys(store, capsys)
    test_grep_by_key((), store, capsys)
    test_hexdump(store, capsys)
    assert main(["store", "verify", str(store)]) == 0
    assert contents(store) == before
    assert [file.stat().st_mtime_ns for file in sorted(store.rglob("*"))] == times


def test_a_reader_that_goes_away_is_no_error(store: Path) -> None:
    for option in ([], ["--json"]):
        command = [sys.executable, "-m", "rucola", "store", "cat", str(store), "--topic", "T0", *option]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert (child.stderr.read(), child.wait(60)) == (b"", 0)
        child.stderr.close()


def test_the_other_commands_do_not_load_it() -> None:
    program = (
        "import sys, rucola.cli.main; print(sorted(n for n in sys.modules if n.startswith('rucola.store')), end='')"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "[]"


def test_hexdump_of_timers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timers = TimerStore(Files(), str(tmp_path), TimerGeometry(480))
    timers.load(TimerQueue(10_000, 0, 5, lambda _: 0, lambda _: 0), 1_700_000_000_000)
    for number in range(9):
        timers.add(1_700_000_005_000, WaitingUnit(100 * number, 90, 1, 1_700_000_000_000), 0)
    timers.mark(0)
    changes = timers.changes(0, 1_700_000_000_000)
    assert changes is not None
    timers.write(changes)
    timers.close()

    def values(kind: str, *item: str) -> list[int]:
        (piece,) = lines(capsys, "hexdump", kind, tmp_path, *item)
        return [field["value"] for field in piece["fields"]]

    assert values("timerlog", "52") == [52, 0, 1, 1_700_000_000_000, 5000, 100, 90, 0, 0]
    assert values("timerlog", "416")[0] == 64
    assert values("timerlog", "480")[1] == 364
    assert values("timerwheel", "1700000005") == [1_700_000_005, 0, 480, 9, 0]
    assert values("timercheck")[:4] == [1_700_000_000_000, 532, 0, 0]
    assert main(["store", "hexdump", "timerlog", str(tmp_path), "9999"]) != 0


def test_names_that_lead_nowhere_say_what_there_is(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, allowed in (
        (("info", f"{store}/nosuch"), "an existing directory"),
        (("cat", str(store), "--topic", "nosuch"), "a topic with messages: "),
        (("cat", str(store), "--topic", "Odd", "--queue", "7"), "0"),
    ):
        assert main(["store", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith("rucola: option ") and f"allowed: {allowed}" in error and error.count("\n") == 1
    assert main(["store", "cat", str(store), "--topic", "nosuch"]) == 2
    assert "Odd" in capsys.readouterr().err


def test_a_full_device_as_output_is_one_line(store: Path) -> None:
    for words in (("info", str(store)), ("cat", str(store), "--topic", "Odd", "--json")):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            command = [sys.executable, "-m", "rucola", "store", *words]
            ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (6, "rucola: standard output: No space left on device\n")


@pytest.mark.parametrize(
    "name", ["properties", "ipv6_hosts", "rolling", "inner_batch_cq", "v2_long_topic", "bodies", "queue_ext"]
)
def test_lines_made_of_rows_say_what_the_messages_hold(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path / "store")
    store = OfflineStore(str(tmp_path / "store"))
    seen = 0
    for found in store.queue_ranges():
        lines = b"".join(json_lines(rows) for rows in store.rows(found.topic, found.queue_id, 0, found.max_offset))
        messages = list(store.messages(found.topic, found.queue_id, 0, found.max_offset, unpack=False))
        facts = [json.loads(line) for line in lines.splitlines()]
        assert [fact["physical_offset"] for fact in facts] == [message.physical_offset for message in messages]
        for fact, message in zip(facts, messages, strict=True):
            assert b64decode(fact.pop("body")) == message.body
            assert fact == {
                "topic": message.topic,
                "queue_id": message.queue_id,
                "queue_offset": message.queue_offset,
                "physical_offset": message.physical_offset,
                "size": message.store_size,
                "flag": message.flag,
                "sys_flag": message.sys_flag,
                "born_timestamp_ms": message.born_timestamp_ms,
                "born_host": host_text(message.born_host),
                "store_timestamp_ms": message.store_timestamp_ms,
                "store_host": host_text(message.store_host),
                "reconsume_times": message.reconsume_times,
                "prepared_transaction_offset": message.prepared_transaction_offset,
                "properties": message.properties,
            }
            seen += 1
    store.close()
    assert seen


def test_rows_of_a_damaged_record_end_before_it_and_name_it(tmp_path: Path) -> None:
    writer = opened(tmp_path / "store")
    put(writer, 40)
    writer.shutdown()
    store = OfflineStore(str(tmp_path / "store"))
    found = store.queue_ranges()[0]
    units = list(store.units(found.topic, found.queue_id, 0, found.max_offset))
    (path, start, _), *_ = store.log_segments()
    store.close()
    log = bytearray(Path(path).read_bytes())
    log[units[3][1] - start + 90] ^= 1
    Path(path).write_bytes(log)
    store = OfflineStore(str(tmp_path / "store"))
    rows = store.rows(found.topic, found.queue_id, 0, found.max_offset)
    with pytest.raises(StoreDamagedError, match=f"entry {units[3][0]} of {found.topic}/{found.queue_id}"):
        for _ in rows:
            pass
    store.close()


def test_rebuild_repair_and_undo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    one = opened(path)
    put(one, 60)
    one.shutdown()
    with_topics(path)
    (queue,) = (path / "consumequeue/T0/0").iterdir()
    whole = queue.read_bytes()
    queue.write_bytes(bytes(40) + whole[40:])
    damaged = queue.read_bytes()
    assert main(["store", "repair", str(path), "--dry-run", "--json"]) == 1
    dry = json.loads(capsys.readouterr().out)
    assert dry["found"] == 2 and dry["left"] == 2 and dry["changes"] == 0
    (done,) = lines(capsys, "repair", path, "--jobs", "1")
    assert done["left"] == 0 and done["changes"] == 1 and queue.read_bytes() == whole
    assert lines(capsys, "repair", path, "--undo") == [{"changes taken back": 1}]
    assert queue.read_bytes() == damaged
    (report,) = lines(capsys, "rebuild", path, "--jobs", "1")
    assert report["records"] == report["units"] == 60 and report["published"]
    assert "records" in text(capsys, "rebuild", path, "--dry-run")
    assert "found" in text(capsys, "repair", path)


def test_salvage(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = next(iter(sorted((store / "commitlog").iterdir())))
    (report,) = lines(capsys, "salvage", segment, "-o", tmp_path / "new", "--jobs", "1")
    assert report["found"] == report["saved"] > 0
    assert len(lines(capsys, "cat", tmp_path / "new", "--topic", "T0")) > 0


def test_find_and_stats_of_several_stores(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    one = opened(other)
    put(one, 40)
    one.shutdown()
    found = lines(capsys, "find", store, other, "--key", "key-5")
    assert {message["store"] for message in found} == {str(store), str(other)}
    (message,) = lines(capsys, "find", other, "--key", "key-5")
    host, _, port = str(message["store_host"]).rpartition(":")
    address = bytes(int(part) for part in host.split("."))
    message_id = (address + int(port).to_bytes(4, "big") + int(message["physical_offset"]).to_bytes(8, "big")).hex()
    assert lines(capsys, "find", other, "--id", message_id) == [message]
    for wrong in ("xyz", ""):
        assert main(["store", "find", str(other), "--id", wrong]) == 2
    assert len(lines(capsys, "find", store, other, "--max", "3")) == 3
    assert str(other) in text(capsys, "find", other, "--pattern", "^5 5")
    counted = lines(capsys, "stats", other, "--by", "topic,queue", "--jobs", "1")
    assert sum(int(row["messages"]) for row in counted) == 40
    plot = tmp_path / "hours.png"
    assert "T0" in text(capsys, "stats", other, "--jobs", "1", "--plot", str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["store", "stats", str(other), "--by", "colour"]) == 2


@pytest.mark.parametrize("command", [["store", "info", "DIR"], ["sql", "--store", "DIR", "select 1"]])
def test_a_directory_that_may_not_be_looked_at_is_2(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: object, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)
    code = main([argument.replace("DIR", f"{tmp_path}/private/store") for argument in command])
    monkeypatch.undo()
    error = capsys.readouterr().err
    assert code == 2 and "an existing directory" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["store", "info", ""],
        ["store", "rebuild", ""],
        ["store", "repair", ""],
        ["store", "salvage", "", "-o", "new"],
        ["store", "salvage", "store", "-o", ""],
        ["sql", "select 1", "--store", ""],
        ["store", "find", ""],
        ["store", "stats", ""],
    ],
)
def test_an_empty_path_is_not_the_current_directory(
    arguments: list[str], store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of a variable that is not set."""
    monkeypatch.chdir(store)
    before = contents(store)
    assert main(arguments) == 2
    assert "'' is not allowed" in capsys.readouterr().err
    assert contents(store) == before and not (store / "rebuild").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["grep", "--since", "9" * 5000],
        ["grep", "--until", "9" * 19],
        ["grep", "(" * 5000],
        ["find", "--property", "name=" + "(" * 5000],
    ],
)
def test_values_that_are_too_large_are_2(arguments: list[str], store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", arguments[0], str(store), *arguments[1:]]) == 2
    assert "is not allowed" in capsys.readouterr().err


@pytest.mark.few(1)
@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_closed_standard_stream_is_no_error(descriptor: int, store: Path) -> None:
    command = f"exec {sys.executable} -m rucola store verify {store} {descriptor}>&-"
    found = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["rebuild", "salvage"])
def test_workers_end_with_a_command_that_is_killed(name: str, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_copy(store, path)
    target = ["-o", str(tmp_path / "new")] if name == "salvage" else []
    staging = tmp_path / "new.salvage" if name == "salvage" else path / "rebuild"
    command = [sys.executable, "-m", "rucola", "store", name, str(path), *target, "-j", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not staging.exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    # The workers have inherited the pipe, so it ends when they do.
    process.communicate(timeout=30)


def test_a_worker_that_is_killed_is_one_line(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_copy(store, path)
    process = subprocess.Popen(
        [sys.executable, "-m", "rucola", "store", "rebuild", str(path), "-j", "2"], stderr=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        for child in children.read_text().split():
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(int(child), signal.SIGKILL)
                error = process.communicate(timeout=30)[1]
                assert process.returncode == 1 and "Traceback" not in error
                assert error.endswith("with fewer --jobs\n")
                return
        time.sleep(0.001)
    raise AssertionError("no worker was seen")


def write_copy(store: Path, path: Path) -> None:
    shutil.copytree(store, path)
