"""Services of the runtime: background work, log lines, clocks."""

from __future__ import annotations

import inspect
import io
import json
import logging
import pickle
import queue
import threading
from datetime import datetime
from logging.handlers import QueueHandler
from pathlib import Path

import pytest

from rucola.runtime import logs
from rucola.runtime.background import Worker
from rucola.runtime.clock import SystemClock, local_time_digits
from rucola.runtime.machine import memory_bytes, process_id, raise_file_limit
from rucola.testing.clock import ManualClock


def test_worker_works_when_woken_and_survives_a_defect() -> None:
    called = threading.Semaphore(0)
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        called.release()
        if count == 1:
            raise ValueError("defect")

    worker = Worker("test", work)
    worker.start()
    for _ in range(3):
        worker.wake()
        assert called.acquire(timeout=30)
    worker.stop()
    assert count == 3
    worker.wake()
    assert not called.acquire(blocking=False)


def test_worker_works_at_its_interval() -> None:
    called = threading.Event()
    worker = Worker("test", called.set, 0.01)
    worker.start()
    assert called.wait(30)
    worker.stop()


def test_a_worker_that_never_started_can_be_stopped() -> None:
    Worker("test", lambda: None).stop()


def test_a_log_line_stays_one_line_and_shows_its_fields() -> None:
    stream = io.StringIO()
    handler = logs.set_up("INFO", stream)
    logger = logging.getLogger("rucola.test")
    logs.event(logger, logging.INFO, "store loaded", path="/a b", offset=17, forged="x\nERROR fake", empty="")
    logs.event(logger, logging.DEBUG, "not written", offset=1)
    logging.getLogger("rucola").removeHandler(handler)
    (line,) = stream.getvalue().splitlines()
    assert datetime.fromisoformat(line.split()[0]).utcoffset() is not None
    assert line.endswith('INFO rucola.test "store loaded" path="/a b" offset=17 forged="x\\nERROR fake" empty=""')


def test_a_log_line_as_json_keeps_numbers_and_hides_no_field() -> None:
    stream = io.StringIO()
    handler = logs.set_up("INFO", stream, "json")
    logger = logging.getLogger("rucola.test")
    logs.event(
        logger, logging.INFO, "read", offset=1 << 70, ready=True, level="x\ny", odd="\udc80", none=None, path=b"a"
    )
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")
    logging.getLogger("rucola").removeHandler(handler)
    read, failed = map(json.loads, stream.getvalue().splitlines())
    assert datetime.fromisoformat(read.pop("time")).utcoffset() is not None
    assert read == {
        "level": "INFO",
        "logger": "rucola.test",
        "event": "read",
        "offset": 1 << 70,
        "ready": True,
        "level_": "x\ny",
        "odd": "\udc80",
        "none": None,
        "path": "b'a'",
    }
    assert failed["trace"].endswith("ValueError: bad")


def test_an_ordinary_formatter_shows_the_fields_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "test.logs"):
        logs.event(logging.getLogger("test.logs"), logging.INFO, "100 % read", topic="pay", forged="x\nERROR fake")
        logs.event(logging.getLogger("test.logs"), logging.INFO, "ready")
    read, ready = caplog.records
    assert read.getMessage() == '100 % read topic=pay forged="x\\nERROR fake"'
    assert (vars(read)["rucola_event"], ready.getMessage()) == ("100 % read", "ready")
    assert vars(read)["rucola_fields"] == {"topic": "pay", "forged": "x\nERROR fake"}
    assert (read.filename, read.funcName) == (Path(__file__).name, inspect.stack()[0].function)


def test_own_formatters_show_each_field_once_after_a_queue_as_well() -> None:
    """``QueueHandler`` makes the message before it hands the record on."""
    handed: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = QueueHandler(handed)
    logger = logging.getLogger("test.logs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        logs.event(logger, logging.INFO, "read", topic="pay")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    record = pickle.loads(pickle.dumps(handed.get_nowait()))
    assert record.getMessage() == "read topic=pay"
    assert logs.KeyValueFormatter().format(record).endswith("INFO test.logs read topic=pay")
    shown = json.loads(logs.JsonFormatter().format(record))
    assert (shown["event"], shown["topic"]) == ("read", "pay")


def test_a_record_of_other_code_keeps_its_message() -> None:
    record = logging.LogRecord("rucola.x", logging.INFO, "", 0, "%s messages", (3,), None)
    assert logs.KeyValueFormatter().format(record).endswith('INFO rucola.x "3 messages"')
    assert json.loads(logs.JsonFormatter().format(record))["event"] == "3 messages"


def test_fields_are_formatted_only_for_a_handler_that_asks() -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError("nobody asked")

    class Deaf(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    records: list[logging.LogRecord] = []
    logger = logging.getLogger("test.logs")
    logger.addHandler(handler := Deaf())
    logger.propagate = False
    try:
        logs.event(logger, logging.DEBUG, "not written", value=Loud())
        logs.event(logger, logging.WARNING, "kept", value=Loud())
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert [record.levelno for record in records] == [logging.WARNING]


def test_clocks() -> None:
    system, manual = SystemClock(), ManualClock(1_700_000_000_123)
    assert system.monotonic() <= system.monotonic()
    assert system.wall_ms() > 1_700_000_000_000
    manual.advance(1500)
    assert (manual.wall_ms(), manual.monotonic()) == (1_700_000_001_623, 1.5)
    manual.set_wall_ms(5)
    assert (manual.wall_ms(), manual.monotonic()) == (5, 1.5)
    assert len(local_time_digits(1_700_000_000_123)) == 17
    assert local_time_digits(1_700_000_000_123).endswith("20123")


def test_machine() -> None:
    assert memory_bytes() > 1 << 20
    assert process_id() > 0
    assert raise_file_limit() >= 0
