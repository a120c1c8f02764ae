"""Salvage of records from damaged logs, pieces of files, and disk images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.unit.store.stores import HOST, SEGMENT, fill, message, opened, with_topics
from tests.unit.store.test_rebuild import OPTIONS, contents

from rucola.errors import ConfigError, DiskError
from rucola.formats.message import encode_message
from rucola.runtime.files import Files
from rucola.store.doctor.salvage import FILL, SEARCH, salvage
from rucola.store.doctor.staged import Phase, run_serially
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda _descriptor: None))
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    one = opened(path)
    fill(one, 500, topics=3)
    one.shutdown()
    return path


def bodies(path: Path) -> dict[tuple[str, int, int], bytes]:
    """Returns the bodies of all messages, by topic, queue id and queue offset."""
    one = OfflineStore(str(path))
    found = {
        (queue.topic, queue.queue_id, message.queue_offset): message.body
        for queue in one.queue_ranges()
        for message in one.messages(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)
    }
    one.close()
    return found


def log_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "commitlog").iterdir())}


def test_a_whole_store_comes_out_as_it_is(store: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    report = salvage([str(store)], str(new), options=OPTIONS)
    assert (report.found, report.saved, report.torn, report.gaps, report.topics) == (500, 500, 0, 0, 3)
    assert bodies(new) == bodies(store) and log_of(new) == log_of(store)
    assert contents(new) == contents(store)


def test_only_the_damaged_record_is_lost_and_offsets_stay(store: Path, tmp_path: Path) -> None:
    before, new = bodies(store), tmp_path / "new"
    segment = store / "commitlog" / f"{SEGMENT:020d}"
    data = bytearray(segment.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size : size + 8] = b"\xff" * 8
    segment.write_bytes(data)
    report = salvage([str(store)], str(new), options=OPTIONS)
    assert (report.found, report.saved, report.gaps) == (499, 499, 1)
    after = bodies(new)
    assert len(after) == 499 and all(before[name] == body for name, body in after.items())
    again = opened(new)
    again.shutdown()
    assert bodies(new) == after
    # The offset of the lost message is not used again.
    assert verify(with_topics(new)).counts == {FindingKind.QUEUE_HOLE: 1}


def test_pieces_in_an_image_are_found(store: Path, tmp_path: Path) -> None:
    random, before = Random(5), bodies(store)
    log = log_of(store)
    names = list(log)
    random.shuffle(names)
    image = tmp_path / "image"
    junk = [random.randbytes(random.randrange(3000)) + b"\xda\xa3\x20\xa7" + bytes(10) for _ in names]
    image.write_bytes(b"".join(part for pair in zip(junk, (log[name] for name in names), strict=True) for part in pair))
    copy = tmp_path / "copy"
    copy.write_bytes(log[names[0]][: SEGMENT // 2])
    new = tmp_path / "new"
    report = salvage([str(image), str(copy)], str(new), SEGMENT, options=OPTIONS)
    assert report.saved == 500 and report.copies > 10 and report.torn >= len(names)
    assert bodies(new) == before


def test_lost_segments_become_gaps(store: Path, tmp_path: Path) -> None:
    before, new = bodies(store), tmp_path / "new"
    lost = store / "commitlog" / f"{SEGMENT:020d}"
    lost.unlink()
    report = salvage([str(store)], str(new), options=OPTIONS)
    after = bodies(new)
    assert report.saved == len(after) < 500 and report.gaps == 1
    assert all(before[name] == body for name, body in after.items())
    opened(new).shutdown()
    assert bodies(new) == after


def test_messages_of_deleted_topics_come_back(store: Path, tmp_path: Path) -> None:
    before = bodies(store)
    one = opened(store)
    one.delete_topic(b"T1")
    one.shutdown()
    assert len(bodies(store)) < 500
    salvage([str(store)], str(tmp_path / "new"))
    assert bodies(tmp_path / "new") == before
    report = salvage([str(store)], str(tmp_path / "one"), topics=["T1"])
    assert set(bodies(tmp_path / "one")) == {name for name in before if name[0] == "T1"} and report.topics == 1


def test_a_record_within_a_message_is_no_message(store: Path, tmp_path: Path) -> None:
    record = log_of(store)[f"{0:020d}"]
    record = record[: int.from_bytes(record[:4], "big")]
    one = opened(store)
    sent = message(1000)
    sent.body = b"before" + record + b"after"
    one.put_message(sent)
    one.shutdown()
    assert salvage([str(store)], str(tmp_path / "new")).saved == 501


def test_an_interrupted_salvage_goes_on(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of the salvage continues the previous run, and is killed at a later call that changes the disk."""
    image = tmp_path / "image"
    image.write_bytes(b"".join(log_of(store).values()))
    (store / "commitlog" / f"{SEGMENT:020d}").unlink()
    sources, new = [str(store), str(image)], tmp_path / "new"
    whole = salvage(sources, str(tmp_path / "whole"), options=OPTIONS)
    assert whole.saved == 500 and whole.copies > 0 and whole.resumed == 0
    changes, kill_at, resumed = 0, 1, set[int]()

    class Killed(BaseException):
        pass

    def counted(name: str) -> None:
        call = getattr(Files, name)

        def change(files: Files, *arguments: object, **more: object) -> object:
            nonlocal changes
            changes += 1
            if changes == kill_at:
                raise Killed
            return call(files, *arguments, **more)

        monkeypatch.setattr(Files, name, change)

    for name in ("replace_file", "write_file", "write_at", "rename", "create_segment", "make_directory"):
        counted(name)
    while not (new / "index").exists():
        changes = 0
        try:
            resumed.add(salvage(sources, str(new), options=OPTIONS).resumed)
        except Killed:
            kill_at += 1
    assert kill_at > 30 and max(resumed) >= len(log_of(store))
    assert log_of(new) == log_of(tmp_path / "whole") and bodies(new) == bodies(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image", "new", "store", "whole"]


@pytest.mark.few
@pytest.mark.parametrize("damage", ["magic", "body"])
@pytest.mark.parametrize("longer", [0, 40, -40])
def test_a_record_that_a_sender_put_into_a_body_never_replaces_another(
    damage: str, longer: int, tmp_path: Path
) -> None:
    """The message that holds it is damaged, and an image does not say where its records belong."""
    target = tmp_path / "target"
    broker = opened(target)
    victim, following = fill(broker, 100, topics=3)[6:8]
    size = following.physical_offset - victim.physical_offset + longer
    forged = encode_message(message(6, b"T0", 0, 20), victim.physical_offset, 1, 1 << 41, HOST)
    forged = encode_message(message(6, b"T0", 0, 20 + size - len(forged)), victim.physical_offset, 1, 1 << 41, HOST)
    outer = message(1000, b"attacker")
    outer.body = b"before" * 20 + forged + b"after"
    place = broker.put_message(outer).physical_offset
    fill(broker, 40, topics=3, first=100)
    broker.shutdown()
    before, content = bodies(target), bytearray(b"".join(log_of(target).values())[:SEGMENT])
    content[place + (4 if damage == "magic" else 100)] ^= 1
    image = tmp_path / "image"
    image.write_bytes(bytes(4096) + content + bytes(4096))
    new = tmp_path / "new"
    report = salvage([str(image)], str(new), SEGMENT, options=OPTIONS)
    assert report.misplaced == 1
    assert bodies(new) == {name: body for name, body in before.items() if name[0] != "attacker"}


@pytest.mark.few
@pytest.mark.parametrize(("phase", "ending"), [(SEARCH, ".rows"), (SEARCH, ".json"), (FILL, "")])
@pytest.mark.parametrize("change", ["zeros", "shorter", "gone", "one bit"])
def test_results_that_lost_their_bytes_do_not_count(
    phase: str, ending: str, change: str, store: Path, tmp_path: Path
) -> None:
    def after(this: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        run_serially(this, numbers, look)
        if this.name == phase:
            raise DiskError(this.staging, "write", "no")

    new = tmp_path / "new"
    with pytest.raises(DiskError):
        salvage([str(store)], str(new), options=OPTIONS, run=after)
    names = sorted(path for path in Path(f"{new}.salvage").rglob(f"{phase}-*/*" if phase == FILL else f"{phase}-*"))
    path = next(path for path in names if path.suffix == ending)
    data = path.read_bytes()
    if change == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"zeros": bytes(len(data)), "shorter": data[:-1], "one bit": flipped}[change])
    report = salvage([str(store)], str(new), options=OPTIONS)
    assert report.saved == 500
    assert bodies(new) == bodies(store) and log_of(new) == log_of(store)


def test_nothing_is_overwritten(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist yet"):
        salvage([str(store)], str(store))
    with pytest.raises(ConfigError, match="no such file or directory"):
        salvage([str(tmp_path / "none")], str(tmp_path / "new"))
    assert salvage([str(store)], str(tmp_path / "new"), dry_run=True).found == 500
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
