"""Checks RocketMQ's stores with ``verify``: no findings in intact stores; in damaged stores, the findings that are
listed in the case.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.golden.loader import BROKER_STORES, STORES, load_broker, unpack, write_files
from tests.unit.store.stores import opened, with_topics

from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind

BROKER_CASES = {path.name.removesuffix(".tar.xz") for path in BROKER_STORES.glob("*_clean.tar.xz")}
CASES = tuple(sorted(path.name.removesuffix(".tar.xz") for path in STORES.glob("*.tar.xz")))
Expected = list[tuple[str, str, int, int]]

LOG, INDEX = "commitlog/", "index/"
OLDER, MIDDLE, NEWEST = "consumequeue/Older/", "consumequeue/Middle/", "consumequeue/Newest/"
FIRST = "00000000000000000000"
QUEUES_DELETED: Expected = [
    ("record_without_unit", OLDER + "0", 0, 17),
    ("record_without_unit", OLDER + "1", 0, 5),
    ("record_without_unit", MIDDLE + "0", 0, 21),
    ("record_without_unit", NEWEST + "1", 0, 11),
    ("record_without_unit", NEWEST + "0", 0, 10),
]
OLD_SEGMENT_AND_QUEUES_DELETED: Expected = [
    ("record_without_unit", OLDER + "0", 280, 3),
    ("record_without_unit", OLDER + "1", 80, 1),
    *QUEUES_DELETED[2:],
]
TABLES = (
    "consumerFilter.json",
    "consumerOffset.json",
    "consumerOrderInfo.json",
    "delayOffset.json",
    "messageRequestMode.json",
    "subscriptionGroup.json",
    "topicQueueMapping.json",
    "topics.json",
)

# The findings that the damage in each case.json leads to. For an overwritten or cut place, this is the record that held
# its bytes. Bytes cut or deleted at the log's end only show in the queues, the index and the checkpoint.
DAMAGED: dict[str, Expected] = {
    "clean_stop_bad_crc_earlier": [("body_crc", LOG + FIRST, 2140, 1)],
    "clean_stop_bad_crc_last_segment": [("body_crc", LOG + "00000000000000024576", 2218, 1)],
    "clean_stop_checkpoint_deleted": [("checkpoint", "checkpoint", 0, 1)],
    "clean_stop_cq_and_index_deleted": [*QUEUES_DELETED, ("keys_missing", "index", 0, 1)],
    "clean_stop_cq_deleted": QUEUES_DELETED,
    "clean_stop_cq_tail_lost": [("record_without_unit", OLDER + "0/" + FIRST, 140, 10)],
    "clean_stop_index_deleted": [("keys_missing", "index", 0, 1)],
    "clean_stop_last_segment_deleted": [
        ("segment_missing", LOG + "00000000000000024576", 0, 1),
        ("unit_without_record", MIDDLE + "0/" + FIRST, 320, 4),
        ("unit_without_record", MIDDLE + "0/00000000000000000400", 0, 1),
        ("unit_without_record", NEWEST + "0/" + FIRST, 160, 2),
        ("unit_without_record", NEWEST + "1/" + FIRST, 160, 3),
        ("index_entry", INDEX + "20231114221325023", 640, 20),
        ("checkpoint", "checkpoint", 8, 1),
    ],
    "clean_stop_log_deleted": [
        ("unit_without_record", MIDDLE + "0/" + FIRST, 0, 20),
        ("unit_without_record", MIDDLE + "0/00000000000000000400", 0, 1),
        ("unit_without_record", NEWEST + "0/" + FIRST, 0, 10),
        ("unit_without_record", NEWEST + "1/" + FIRST, 0, 11),
        ("unit_without_record", OLDER + "0/" + FIRST, 0, 17),
        ("unit_without_record", OLDER + "1/" + FIRST, 0, 5),
        ("index_entry", INDEX + "20231114221320123", 460, 99),
        ("index_entry", INDEX + "20231114221325023", 460, 29),
    ],
    "clean_stop_newest_queue_deleted": QUEUES_DELETED[3:],
    # RocketMQ does not rebuild these queues completely: later puts take the place of older entries.
    "clean_stop_newest_queue_continued": [
        ("record_without_unit", NEWEST + "1/" + FIRST, 20, 10),
        ("record_without_unit", NEWEST + "0/" + FIRST, 40, 8),
        ("unit", NEWEST + "1/" + FIRST, 0, 1),
        ("unit", NEWEST + "0/" + FIRST, 0, 2),
    ],
    "clean_stop_newest_run_deleted": [
        ("record_without_unit", NEWEST + "1", 0, 11),
        ("record_without_unit", NEWEST + "0", 0, 14),
    ],
    "clean_stop_queue_deleted": QUEUES_DELETED[:2],
    "killed_bad_body_crc": [("body_crc", LOG + "00000000000000008192", 4560, 1)],
    # The next run cut the log there and left the units and keys of the records that it cut off.
    "killed_bad_body_crc_continued": [
        ("unit_without_record", MIDDLE + "0/" + FIRST, 100, 15),
        ("unit_without_record", NEWEST + "0/" + FIRST, 40, 8),
        ("unit_without_record", NEWEST + "1/" + FIRST, 60, 8),
        ("stale_unit", MIDDLE + "0/" + FIRST, 60, 2),
        ("index_entry", INDEX + "20231114221320123", 1580, 43),
        ("checkpoint", "checkpoint", 16, 1),
    ],
    "killed_bad_magic": [("record", LOG + "00000000000000008192", 4560, 1)],
    "killed_bad_size": [("record", LOG + "00000000000000016384", 3967, 1)],
    "killed_cq_ahead": [
        ("unit_without_record", MIDDLE + "0/" + FIRST, 340, 3),
        ("unit_without_record", MIDDLE + "0/00000000000000000400", 0, 1),
        ("unit_without_record", NEWEST + "0/" + FIRST, 160, 2),
        ("unit_without_record", NEWEST + "1/" + FIRST, 160, 3),
        ("index_entry", INDEX + "20231114221325023", 680, 18),
        ("checkpoint", "checkpoint", 0, 1),
        ("checkpoint", "checkpoint", 8, 1),
    ],
    "killed_cq_behind": [("record_without_unit", NEWEST + "1/" + FIRST, 120, 5)],
    "killed_garbage_tail": [("torn_tail", LOG + "00000000000000024576", 4500, 1)],
    "killed_half_record": [("torn_tail", LOG + "00000000000000024576", 4105, 1)],
    "killed_log_min_raised_cq_deleted": OLD_SEGMENT_AND_QUEUES_DELETED,
    "killed_tail_zeroed": [
        ("unit_without_record", MIDDLE + "0/" + FIRST, 380, 1),
        ("unit_without_record", MIDDLE + "0/00000000000000000400", 0, 1),
        ("unit_without_record", NEWEST + "0/" + FIRST, 180, 1),
        ("unit_without_record", NEWEST + "1/" + FIRST, 180, 2),
        ("index_entry", INDEX + "20231114221325023", 840, 10),
        ("checkpoint", "checkpoint", 8, 1),
    ],
    "log_min_raised_cq_deleted": OLD_SEGMENT_AND_QUEUES_DELETED,
    "refused_stray_file": [("stray_file", LOG + "notes.txt", 0, 1)],
    "refused_wrong_length": [("segment_length", OLDER + "0/" + FIRST, 380, 1)],
    "config_empty_main": [("table", "config/" + name, 0, 1) for name in TABLES],
    "config_missing_main": [("table", "config/" + name, 0, 1) for name in TABLES],
}
BROKEN_TABLES = {
    "config_broken_main": TABLES,
    "config_broken_main_no_bak": TABLES,
    "config_broken_both": tuple(name + end for name in TABLES for end in ("", ".bak")),
}


@pytest.mark.parametrize("name", CASES)
def test_finds_the_damage_of_the_case_and_nothing_else(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    if not (tmp_path / "config").exists():
        with_topics(tmp_path)  # no broker has used the store
    report = verify(str(tmp_path))
    found = [(str(finding.kind), finding.file, finding.position, finding.count) for finding in report.findings]
    if name in BROKEN_TABLES:
        assert {(kind, file) for kind, file, _, _ in found} == {("table", "config/" + n) for n in BROKEN_TABLES[name]}
        assert all(position > 0 for _, _, position, _ in found)
    else:
        assert found == DAMAGED.get(name, [])
    assert report.clean is not bool(found)
    assert sum(report.counts.values()) == sum(count for _, _, _, count in found)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in {*DAMAGED, *BROKEN_TABLES} and not name.startswith("config")]
)
def test_counts_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    case = unpack(name, tmp_path)
    report = verify(str(tmp_path))
    assert report.records == sum(1 for entry in case.expect["log"] if "topic" in entry)
    assert report.log_end == case.expect["store"]["maxPhyOffset"]
    assert report.units == sum(len(queue["units"]) for queue in case.expect["queues"])


def test_a_store_without_messages_needs_no_topic_table(tmp_path: Path) -> None:
    opened(tmp_path / "ours").shutdown()
    assert verify(str(tmp_path / "ours")).clean
    write_files(load_broker("acl_clean").files, tmp_path / "java")
    shutil.rmtree(tmp_path / "java/config")
    assert verify(str(tmp_path / "java")).clean


@pytest.mark.parametrize("name", sorted(BROKER_CASES - {"acl_clean"}))
def test_the_topic_table_of_a_broker_is_missed(name: str, tmp_path: Path) -> None:
    write_files(load_broker(name).files, tmp_path)
    before = verify(str(tmp_path)).counts
    shutil.rmtree(tmp_path / "config")
    report = verify(str(tmp_path))
    assert report.counts.pop(FindingKind.TABLE) == 1
    assert [one.file for one in report.findings if one.kind is FindingKind.TABLE] == ["config"]
    assert before.items() >= report.counts.items()


def test_old_records_behind_the_end_are_no_torn_tail_after_a_crash_either(tmp_path: Path) -> None:
    unpack("killed_bad_body_crc_continued", tmp_path)
    (tmp_path / "abort").write_text("1")
    report = verify(str(tmp_path))
    assert "torn_tail" not in {str(kind) for kind in report.counts}
    assert any("2398 old bytes after the end of the log, including 5 whole records" in note for note in report.notes)


def test_every_damaged_case_is_there() -> None:
    assert {*DAMAGED, *BROKEN_TABLES} <= set(CASES)
