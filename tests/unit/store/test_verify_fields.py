"""The check of fields that nothing else in a store repeats: each impossible value is named, and each possible one is
left alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.stores import HOST, fill, message, opened, with_topics
from tests.unit.store.test_verify import FIRST, flip, found, index_name, made, overwrite, records, segment

from rucola.common.sysflag import MessageSysFlag
from rucola.formats.checkpoint import CHECKPOINT, StoreCheckpoint
from rucola.formats.compression import CompressionType, compress, is_compressed
from rucola.store.doctor.repair import repair
from rucola.store.results import PutMessageStatus
from rucola.store.verify.check import verify

SYS_FLAG, BORN_PORT, STORE_PORT, RECONSUME_TIMES, PREPARED = 36, 52, 68, 72, 76


def unprotected(path: Path) -> tuple[Path, int]:
    """Makes a store without checksums of records; returns its log, and the position of the fourth record."""
    file = segment(made(path, 40, enabled_append_prop_crc=False))
    return file, records(file)[3]


@pytest.mark.parametrize(
    ("position", "value", "kind"),
    [
        (SYS_FLAG, 0x800, "sys_flag"),  # a bit without meaning
        (SYS_FLAG, 1 << 31, "sys_flag"),
        (SYS_FLAG, MessageSysFlag.COMPRESSED, "sys_flag"),
        (SYS_FLAG, MessageSysFlag.COMPRESSION_LZ4, "sys_flag"),
        (SYS_FLAG, MessageSysFlag.NEED_UNWRAP, "sys_flag"),
        (SYS_FLAG, MessageSysFlag.INNER_BATCH, "sys_flag"),
        (SYS_FLAG, MessageSysFlag.TRANSACTION_PREPARED, "sys_flag"),
        (SYS_FLAG, MessageSysFlag.TRANSACTION_ROLLBACK, "sys_flag"),
        (BORN_PORT, 65536, "host"),
        (STORE_PORT, 1 << 31, "host"),
        (RECONSUME_TIMES, (1 << 32) - 1, "reconsume_times"),
        (PREPARED, 1, "prepared_transaction_offset"),
    ],
)
def test_an_impossible_value_is_named(position: int, value: int, kind: str, tmp_path: Path) -> None:
    file, at = unprotected(tmp_path)
    overwrite(file, at + position, int(value).to_bytes(4, "big"))
    assert found(verify(with_topics(tmp_path))) == [(kind, FIRST, at, 1)]


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (SYS_FLAG, MessageSysFlag.MULTI_TAGS),
        (SYS_FLAG, MessageSysFlag.TRANSACTION_COMMIT),
        (BORN_PORT, 65535),
        (STORE_PORT, 0),
        (RECONSUME_TIMES, 16),
    ],
)
def test_a_possible_value_is_no_finding(position: int, value: int, tmp_path: Path) -> None:
    file, at = unprotected(tmp_path)
    overwrite(file, at + position, int(value).to_bytes(4, "big"))
    assert found(verify(with_topics(tmp_path))) == []


def test_a_transaction_that_ended_has_a_half_message(tmp_path: Path) -> None:
    file, at = unprotected(tmp_path)
    overwrite(file, at + SYS_FLAG, int(MessageSysFlag.TRANSACTION_COMMIT).to_bytes(4, "big"))
    overwrite(file, at + PREPARED, (77).to_bytes(8, "big"))
    assert found(verify(with_topics(tmp_path))) == []
    overwrite(file, at + PREPARED, b"\xff" * 8)
    assert found(verify(with_topics(tmp_path))) == [("prepared_transaction_offset", FIRST, at, 1)]


def test_a_record_with_a_wrong_checksum_is_reported_once(tmp_path: Path) -> None:
    file = segment(made(tmp_path, 40))
    at = records(file)[3]
    overwrite(file, at + PREPARED, b"\1")
    assert found(verify(with_topics(tmp_path))) == [("record_crc", FIRST, at, 1)]


def test_compressed_bodies_ended_transactions_and_ipv6_are_sound(tmp_path: Path) -> None:
    store = opened(tmp_path, enabled_append_prop_crc=False)
    plain = message(0)
    for kind in CompressionType:
        body, flags = compress(plain.body, kind=kind)
        assert store.put_message(replace(plain, body=body, sys_flag=flags)).status is PutMessageStatus.PUT_OK
    body, _ = compress(plain.body)
    old_client = replace(plain, body=body, sys_flag=int(MessageSysFlag.COMPRESSED))
    ended = replace(plain, sys_flag=int(MessageSysFlag.TRANSACTION_COMMIT), prepared_transaction_offset=77)
    from_ipv6 = replace(plain, born_host=bytes(15) + b"\1" + HOST[4:], sys_flag=int(MessageSysFlag.BORN_HOST_V6))
    for one in (old_client, ended, from_ipv6, plain):
        assert store.put_message(one).status is PutMessageStatus.PUT_OK
    store.dispatch()
    store.shutdown()
    assert found(verify(with_topics(tmp_path))) == []
    file = segment(tmp_path)
    port_of_ipv6 = records(file)[5] + 48 + 16
    overwrite(file, port_of_ipv6, b"\1")
    assert ("host", FIRST, records(file)[5], 1) in found(verify(with_topics(tmp_path)))


def test_a_body_that_is_compressed_in_another_way() -> None:
    for kind in CompressionType:
        body, flags = compress(b"text", kind=kind)
        others = [compress(b"text", kind=other)[1] for other in CompressionType if other is not kind]
        assert is_compressed(body, flags)
        assert not any(is_compressed(body, other) for other in [*others, 0, 0x401, flags & ~1])
    assert not is_compressed(b"x", 1)


def checkpoint_of(path: Path) -> StoreCheckpoint:
    return StoreCheckpoint.decode((path / "checkpoint").read_bytes())


def write_field(path: Path, name: str, value: int) -> None:
    overwrite(path / "checkpoint", CHECKPOINT.position(name), value.to_bytes(8, "big"))


TIMES = ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms")


def store_times(path: Path) -> list[int]:
    file = segment(path)
    data = file.read_bytes()
    return [int.from_bytes(data[at + 56 : at + 64], "big") for at in records(file)]


@pytest.mark.parametrize("name", TIMES)
def test_a_time_in_the_checkpoint_that_no_record_has(name: str, tmp_path: Path) -> None:
    times = store_times(made(tmp_path, 30))
    for lagging in (times[5], 0):
        write_field(tmp_path, name, lagging)
        assert found(verify(with_topics(tmp_path))) == []
    between = min({*range(times[0], times[-1])} - {*times})
    for wrong in (between, 1, times[0] - 1):
        write_field(tmp_path, name, wrong)
        expected = [("checkpoint", "checkpoint", CHECKPOINT.position(name), 1)]
        assert found(verify(with_topics(tmp_path))) == expected


def test_a_time_in_the_checkpoint_of_a_record_that_expired_or_was_lost(tmp_path: Path) -> None:
    times = store_times(made(tmp_path))
    write_field(tmp_path, "physic_msg_timestamp_ms", times[0])
    segment(tmp_path).unlink()
    assert found(verify(with_topics(tmp_path))) == []
    flip(segment(tmp_path), records(segment(tmp_path))[3] + 5)
    write_field(tmp_path, "physic_msg_timestamp_ms", store_times(tmp_path)[2] + 1)
    assert [kind for kind, _, _, _ in found(verify(with_topics(tmp_path)))] == ["record"]


def test_a_time_in_the_checkpoint_of_a_record_that_is_damaged_or_in_quarantine(tmp_path: Path) -> None:
    file = segment(made(tmp_path, 30, enabled_append_prop_crc=False, message_index_enable=False))
    times, at = store_times(tmp_path), records(file)[9]
    write_field(tmp_path, "logics_msg_timestamp_ms", times[9])
    overwrite(file, at + 56, (times[9] + 3_600_000).to_bytes(8, "big"))
    assert found(verify(with_topics(tmp_path))) == [("store_time", FIRST, at, 1)]
    overwrite(file, at + 56, times[8].to_bytes(8, "big"))
    assert [kind for kind, _, _, _ in found(verify(with_topics(tmp_path)))] == ["checkpoint"]
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "gaps.json").write_text("[]")
    assert found(verify(with_topics(tmp_path))) == []


def test_an_offset_in_the_checkpoint_inside_damage(tmp_path: Path) -> None:
    file = segment(made(tmp_path, 30))
    at = records(file)[3]
    flip(file, at + 5)
    write_field(tmp_path, "confirm_physical_offset", at + 1)
    assert {kind for kind, _, _, _ in found(verify(with_topics(tmp_path)))} == {"record"}


@pytest.mark.parametrize(("position", "is_known"), [(40, True), (47, True), (48, False), (4095, False)])
def test_what_follows_the_fields_of_the_checkpoint(position: int, is_known: bool, tmp_path: Path) -> None:
    """RocketMQ 5.5.0 has one more field."""
    store = opened(tmp_path)
    fill(store, 10)
    store.shutdown()
    overwrite(tmp_path / "checkpoint", position, b"\1")
    expected = [] if is_known else [("checkpoint", "checkpoint", position, 1)]
    assert found(verify(with_topics(tmp_path))) == expected


def test_a_checkpoint_and_an_index_in_use_may_be_ahead(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_interval_consume_queue_ms=100_000, flush_interval_commit_log_ms=100_000)
    fill(store, 30)
    at = records(segment(tmp_path))[3]
    (tmp_path / "checkpoint").write_bytes(StoreCheckpoint(1, 1, 1, at + 1, at + 1).encode())
    overwrite(index_name(tmp_path), index_name(tmp_path).stat().st_size - 7, b"\1")
    assert found(verify(with_topics(tmp_path))) == []
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    write_field(tmp_path, "index_msg_timestamp_ms", store_times(tmp_path)[3])
    assert found(verify(with_topics(tmp_path))) == []
    store.shutdown()


def test_an_offset_of_the_master_inside_a_record(tmp_path: Path) -> None:
    second = records(segment(made(tmp_path, 30)))[1]
    for right in (second, 1 << 40):
        write_field(tmp_path, "master_flushed_offset", right)
        assert found(verify(with_topics(tmp_path))) == []
    write_field(tmp_path, "master_flushed_offset", second + 1)
    assert found(verify(with_topics(tmp_path))) == [("checkpoint", "checkpoint", 24, 1)]


def test_an_index_that_is_gone(tmp_path: Path) -> None:
    path = made(tmp_path, max_index_num=100)
    assert checkpoint_of(path).index_msg_timestamp_ms > store_times(path)[0]
    for file in (path / "index").iterdir():
        file.unlink()
    assert found(verify(with_topics(path))) == [("keys_missing", "index", 0, 1)]
    for lagging in (0, store_times(path)[0]):  # such an index may have expired
        write_field(path, "index_msg_timestamp_ms", lagging)
        assert found(verify(with_topics(path))) == []


def test_a_stray_byte_after_the_entries_of_an_index(tmp_path: Path) -> None:
    file = index_name(made(tmp_path, 30))
    end = len(file.read_bytes().rstrip(b"\0"))
    end += -(end - 40 - 400) % 20
    overwrite(file, end + 47, b"\1")
    assert found(verify(with_topics(tmp_path))) == [("index_entry", f"index/{file.name}", end, 1)]
    (tmp_path / "abort").write_text("1")  # a crash may leave such bytes
    assert found(verify(with_topics(tmp_path))) == []


def test_repair_resets_a_time_that_no_record_has(tmp_path: Path) -> None:
    write_field(made(tmp_path, 30), "logics_msg_timestamp_ms", 1)
    repair(str(tmp_path))
    assert checkpoint_of(tmp_path).logics_msg_timestamp_ms == 0
    assert found(verify(with_topics(tmp_path))) == []
