"""All tools read the sizes of a store's files as the broker does: old spellings, and the source's own files."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest
from tests.unit.store.stores import SMALL, fill, opened

from rucola.errors import ConfigError
from rucola.runtime.files import Files
from rucola.store.config import in_todays_words
from rucola.store.doctor.rebuild import rebuild
from rucola.store.doctor.rebuild_job import find_job
from rucola.store.doctor.repair import repair
from rucola.store.doctor.salvage import salvage
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore, queue_options_of
from rucola.store.results import GetMessageStatus
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind

OLD = {"mapedFileSizeConsumeQueue": "2000", "mapedFileSizeCommitLog": "65536"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store = opened(tmp_path / "store")
    fill(store, 700)
    store.shutdown()
    return tmp_path / "store"


def serves(path: Path) -> bool:
    store: MessageStore = opened(path)
    found = store.get_message(b"T0", 0, 100, 1, 1 << 20).status is GetMessageStatus.FOUND
    store.shutdown()
    return found


def lengths(path: Path, part: str) -> set[int]:
    return {file.stat().st_size for file in (path / part).rglob("*") if file.is_file()}


def test_a_salvage_keeps_the_sizes_of_its_source(source: Path, tmp_path: Path) -> None:
    index = lengths(source, "index")
    salvage([str(source)], str(tmp_path / "saved"))
    assert lengths(tmp_path / "saved", "consumequeue") == {2000}
    assert lengths(tmp_path / "saved", "index") == index
    assert serves(tmp_path / "saved")


def test_a_given_size_takes_precedence(source: Path, tmp_path: Path) -> None:
    salvage([str(source)], str(tmp_path / "saved"), options={"mapedFileSizeConsumeQueue": "4000"})
    assert lengths(tmp_path / "saved", "consumequeue") == {4000}
    assert lengths(tmp_path / "saved", "index") == lengths(source, "index")


@pytest.mark.parametrize("tool", ["rebuild", "repair", "salvage"])
def test_old_spellings(source: Path, tmp_path: Path, tool: str) -> None:
    for file in (source / "consumequeue").rglob("0*"):
        if file.is_file():
            file.unlink()
    if tool == "rebuild":
        rebuild(str(source), options=OLD)
    elif tool == "repair":
        repair(str(source), options=OLD)
    else:
        salvage([str(source)], str(tmp_path / "saved"), options=OLD)
    path = tmp_path / "saved" if tool == "salvage" else source
    assert lengths(path, "consumequeue") == {2000}
    assert serves(path)


def test_two_spellings_with_different_values_are_refused(source: Path) -> None:
    both = {"mapedFileSizeConsumeQueue": "2000", "mappedFileSizeConsumeQueue": "4000"}
    with pytest.raises(ConfigError, match="mapedFileSizeConsumeQueue"):
        find_job(Files(), str(source), both)
    assert in_todays_words({**both, "mappedFileSizeConsumeQueue": "2000"}) == {"mappedFileSizeConsumeQueue": "2000"}


def test_one_queue_file_that_was_cut_does_not_set_the_size(source: Path) -> None:
    first = sorted(file for file in (source / "consumequeue").rglob("*") if file.is_file())[0]
    first.write_bytes(first.read_bytes()[:40])
    assert queue_options_of(Files(), str(source)).segment_bytes == SMALL["mapped_file_size_consume_queue"]
    assert OfflineStore(str(source)).queue_options().segment_bytes == 2000


def test_verify_reports_a_topic_table_that_is_gone(source: Path) -> None:
    """The next start would know no topic, although there are messages of two."""
    config = source / "config"
    [gone] = verify(str(source)).findings
    assert (gone.kind, gone.file, gone.position) == (FindingKind.TABLE, "config", 0)
    assert gone.detail == (
        "there is no such directory, but there are 2 topics with queues or messages; "
        "the next start knows none of them, and no group and no consumer offset"
    )
    config.mkdir()
    (config / "delayOffset.json").write_text('{"offsetTable":{}}')
    [gone] = verify(str(source)).findings
    assert (gone.kind, gone.file, gone.position) == (FindingKind.TABLE, "config/topics.json", 0)
    assert gone.detail == (
        "there is no such file, but there are 2 topics with queues or messages; the next start knows none of them"
    )
    rmtree(source / "consumequeue")  # the log alone tells of the topics, too
    assert FindingKind.TABLE in verify(str(source)).counts
    (config / "topics.json").write_text('{"topicConfigTable":{}}')
    assert FindingKind.TABLE not in verify(str(source)).counts
    (config / "topics.json").rename(config / "topics.json.bak")
    [gone] = [one for one in verify(str(source)).findings if one.kind is FindingKind.TABLE]
    assert gone.detail == "there is no such file, but there is topics.json.bak"


def test_a_broker_that_is_running_is_not_blamed(source: Path) -> None:
    """Its tables are in its memory."""
    running = opened(source)
    assert verify(str(source)).clean
    running.shutdown()
    assert not verify(str(source)).clean
