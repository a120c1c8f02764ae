"""Stores with links and other people's files: no tool and no start touches what lies outside of a store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree
from zlib import crc32

import pytest
from tests.unit.store.stores import SEGMENT, fill, opened, with_topics
from tests.unit.store.test_rebuild import OPTIONS

from rucola.errors import ForeignEntryError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.doctor.journal import Journal
from rucola.store.doctor.rebuild import rebuild
from rucola.store.doctor.repair import repair, undo
from rucola.store.doctor.salvage import salvage
from rucola.store.doctor.staged import Phase, Runner, run_serially
from rucola.store.log import multi_path
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.results import GetMessageStatus
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "store"
    store = opened(path)
    fill(store, 300)
    store.shutdown()
    return path


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    return Path(copytree(written, tmp_path / "store"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory that looks like a queue, and belongs to somebody else."""
    path = tmp_path / "victim"
    (path / "sub/0").mkdir(parents=True)
    for name in ("precious", "sub/letter", f"{0:020d}", f"sub/0/{0:020d}"):
        (path / name).write_bytes(bytes(2000))
    return path


def seen(directory: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def put_link(link: Path, target: Path) -> None:
    """Puts a link in place of a directory; what was in it is moved to the target, as an operator would do."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        for child in link.iterdir():
            child.rename(target / f"moved-{child.name}" if (target / child.name).exists() else target / child.name)
        link.rmdir()
    link.symlink_to(target)


@pytest.mark.parametrize("place", ["consumequeue/LINK", "consumequeue/T9/0", "rebuild/old/L", "rebuild", "index"])
def test_a_rebuild_enters_no_link(place: str, store: Path, victim: Path) -> None:
    put_link(store / place, victim)
    before = seen(victim)
    try:
        rebuild(str(store), options=OPTIONS)
    except (StoreDamagedError, ForeignEntryError) as error:
        assert str(store / place) in str(error)
    assert seen(victim) == before


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_rebuild_of_what_lies_elsewhere_is_refused_before_its_first_change(
    part: str, store: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put_link(store / part, elsewhere)
    before, there = seen(store), seen(elsewhere)
    with pytest.raises(StoreDamagedError, match=rf"{part}, position 0: a symbolic link"):
        rebuild(str(store), options=OPTIONS)
    assert seen(store) == before and seen(elsewhere) == there
    # Everything else works through the link.
    assert verify(with_topics(store)).clean
    again = opened(store)
    assert again.get_message(b"T0", 0, 0, 32, 1 << 20).status is GetMessageStatus.FOUND
    fill(again, 5, first=300)
    again.shutdown()
    assert len(seen(elsewhere)) >= len(there)


def test_a_rebuild_across_file_systems_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "device", lambda _self, path: int(path.endswith("consumequeue")))
    before = seen(store)
    with pytest.raises(StoreDamagedError, match="consumequeue, position 0: on another file system"):
        rebuild(str(store), options=OPTIONS)
    assert seen(store) == before


def a_start(path: Path) -> None:
    opened(path).shutdown()


def a_start_after_a_kill(path: Path) -> None:
    (path / "rucola-watermark").unlink(missing_ok=True)
    if not (path / "abort").is_symlink():
        (path / "abort").write_bytes(b"1")
    opened(path).shutdown()


def a_repair(path: Path) -> None:
    repair(str(path), options=OPTIONS)


def a_salvage(path: Path) -> None:
    salvage([str(path)], str(path.parent / "salvaged"))


USES: list[Callable[[Path], None]] = [a_start, a_start_after_a_kill, a_repair, a_salvage]


@pytest.mark.few
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "place",
    [
        *("consumequeue/T0/0", "consumequeue/LINK", "checkpoint", "rucola-watermark", "rucola-deleted-topics", "lock"),
        *("deleted-queues", "deleted-queues/0", "quarantine", "repair", "rebuild", "config", "abort", "checkpoint.tmp"),
        *(
            "rucola-watermark.tmp",
            "commitlog-00000000000000000000.tmp",
            f"commitlog/{0:020d}",
            "commitlog/rucola-rebuild",
        ),
    ],
)
def test_a_link_is_refused_or_removed_and_never_entered(
    place: str, use: Callable[[Path], None], store: Path, victim: Path
) -> None:
    link = store / place
    if link.is_file():
        link.unlink()
    is_file = "." in link.name or link.name in ("checkpoint", "rucola-watermark", "lock", "abort", f"{0:020d}")
    put_link(link, victim / "precious" if is_file else victim)
    before = seen(victim)
    try:
        use(store)
    except (StoreDamagedError, ForeignEntryError) as error:
        assert place in str(error)
    assert seen(victim) == before


def test_a_deleted_topic_takes_no_link_with_it(store: Path, victim: Path) -> None:
    broker = opened(store)
    (store / "consumequeue/T0/backup").symlink_to(victim)
    before = seen(victim)
    broker.delete_topic(b"T0")
    broker.shutdown()
    opened(store).shutdown()  # removes what is left in ``deleted-queues``
    assert not (store / "consumequeue/T0").exists() and not (store / "deleted-queues").exists()
    assert seen(victim) == before


def test_a_log_directory_of_the_configuration_is_followed_but_no_link_in_it(tmp_path: Path, victim: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk)
    options = {"store_path_commit_log": str(link)}
    store = opened(tmp_path / "store", **options)
    fill(store, 300)
    store.shutdown()
    assert (disk / f"{SEGMENT:020d}").exists()
    (disk / multi_path._STAGING).symlink_to(victim)
    before = seen(victim)
    opened(tmp_path / "store", **options).shutdown()
    assert seen(victim) == before and not (disk / multi_path._STAGING).exists()


def test_links_are_findings(store: Path, victim: Path) -> None:
    (store / "consumequeue/LINK").symlink_to(victim)
    (store / "notes").symlink_to(victim / "precious")
    (store / "consumequeue/T0/index").symlink_to(victim)
    os.mkfifo(store / "index/fifo")
    found = [one for one in verify(str(store)).findings if one.kind is FindingKind.STRAY_FILE]
    named = {(one.file, one.detail.partition(";")[0]) for one in found}
    links = ("consumequeue/LINK", "consumequeue/T0/index", "notes")
    assert named >= {*((link, "a symbolic link") for link in links), ("index/fifo", "a FIFO")}


STRANGERS = [
    *("commitlog/.nfs0001", "commitlog/lost+found/", f"commitlog/{0:020d}~", "consumequeue/T0/0/.nfs0001"),
    *(f"consumequeue/T0/0/{0:020d}.bak", "consumequeue/T0/.DS_Store", "consumequeue/lost+found/", "index/.nfs0001"),
    *("index/notes.txt", "config/topics.json~", "consumequeue/T0/0/A", "timerlog/.nfs0001"),
]


@pytest.mark.few
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", STRANGERS)
def test_files_of_others_are_passed_over(
    name: str, killed: bool, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = store / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_bytes(b"theirs")
    if killed:
        (store / "abort").write_bytes(b"1")
    broker = opened(store)
    fill(broker, 4, first=300)
    result = broker.get_message(b"T0", 0, 70, 32, 1 << 20)
    assert (result.status, result.message_count) == (GetMessageStatus.FOUND, 6)
    broker.shutdown()
    assert path.exists() and (path.is_dir() or path.read_bytes() == b"theirs")
    if name.startswith(("commitlog", "consumequeue/T0/0")) and not name.endswith("/"):
        told = [record.message for record in caplog.records if record.message.startswith("file of somebody else")]
        assert len(told) == 1 and str(path) in told[0]
    again = opened(store)
    assert not again.recovered
    again.shutdown()
    offline = OfflineStore(str(store))
    assert offline.queue_range("T0", 0).max_offset == 76
    offline.close()


def test_a_start_ends_the_undo_of_a_repair(store: Path) -> None:
    queue = store / "consumequeue/T0/0" / f"{0:020d}"
    queue.write_bytes(bytes(40) + queue.read_bytes()[40:])
    repair(str(store), options=OPTIONS)
    assert Journal.newest(Files(), str(store)) is not None
    opened(store).shutdown()
    with pytest.raises(StoreDamagedError, match="the store was used after the repair"):
        undo(str(store))


@pytest.mark.parametrize("index", [0, 1])
def test_quarantine_serves_around_an_empty_segment(index: int, store: Path) -> None:
    more = opened(store)
    fill(more, 400, first=300)
    more.shutdown()
    segments = sorted((store / "commitlog").iterdir())
    assert len(segments) > 3
    segments[index].write_bytes(b"")
    with pytest.raises(StoreDamagedError, match="has 0 bytes"):
        opened(store)
    broker = opened(store, quarantine=True)
    assert broker.get_message(b"T0", 0, 170, 32, 1 << 20).message_count == 5
    assert bool(broker.gaps) is bool(index)
    broker.shutdown()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_salvage_keeps_a_private_table_private(mode: int, store: Path, tmp_path: Path) -> None:
    (store / "config").mkdir(exist_ok=True)
    (store / "config/rucola-auth.json").write_bytes(b"{}")
    (store / "config/rucola-auth.json").chmod(mode)
    salvage([str(store)], str(tmp_path / "salvaged"), options=OPTIONS)
    assert (tmp_path / "salvaged/config/rucola-auth.json").stat().st_mode & 0o777 == mode


def test_salvage_does_not_use_a_working_directory_that_is_a_link(store: Path, victim: Path, tmp_path: Path) -> None:
    (victim / "job.json").write_bytes(b"{}")
    (tmp_path / "salvaged.salvage").symlink_to(victim)
    before = seen(victim)
    with pytest.raises(ForeignEntryError, match=r"salvaged\.salvage is a symbolic link"):
        salvage([str(store)], str(tmp_path / "salvaged"))
    assert seen(victim) == before


@pytest.mark.few
@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"torn": 1}', '{"units": 3, "keys": {}}', '{"units": "../../x", "queues": [[1]]}', "[" * 99999],
)
@pytest.mark.parametrize("job", ["rebuild", "salvage"])
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_left_result_that_makes_no_sense_is_made_again_or_named(
    job: str, content: str, is_checked: bool, store: Path, tmp_path: Path
) -> None:
    """The first tasks of an interrupted run have results; somebody wrote them anew, perhaps with a right checksum."""
    results: list[Path] = []

    def killed(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        run_serially(phase, numbers, look)
        results.extend(Path(phase.staging).glob(f"{phase.name}-*.json"))
        raise KeyboardInterrupt

    def run(runner: Runner) -> None:
        if job == "rebuild":
            rebuild(str(store), runner, options=OPTIONS)
        else:
            salvage([str(store)], str(tmp_path / "salvaged"), run=runner, options=OPTIONS)

    with_topics(store)
    with pytest.raises(KeyboardInterrupt):
        run(killed)
    text = f'{{"result": {content}, "files": {{}}}}'
    for result in results:
        result.write_text(json.dumps([crc32(text.encode()), text]) if is_checked else content)
    if not is_checked or not content.endswith(("}", "]")):  # without that, it is no result whatever its checksum
        run(run_serially)
        assert verify(str(store)).clean
        return
    before = seen(store / "consumequeue")
    with pytest.raises((StoreDamagedError, ForeignEntryError), match=r"rebuild|salvage"):
        run(run_serially)
    assert seen(store / "consumequeue") == before and not (tmp_path / "salvaged").exists()
