"""Rebuild, repair and salvage make the lite topics that the broker had; what no record tells is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.arrow.lite_stores import opened_lite, put
from tests.unit.store.stores import SMALL, opened, with_topics

from rucola.common.options import options_of
from rucola.formats.light_queue import lite_topic
from rucola.formats.lite import LITE_UNIT_BYTES, LiteUnit, decode_unit, encode_unit
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor import rebuild as rebuild_module
from rucola.store.doctor import rebuild_lite, rebuild_scan
from rucola.store.doctor.rebuild import rebuild
from rucola.store.doctor.repair import repair, undo
from rucola.store.doctor.salvage import salvage
from rucola.store.lite.lite_names import LiteNames
from rucola.store.lite.lite_table import LiteColumns, TableHead, encode_parts, read_table, write_table
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind
from rucola.store.verify.lite import _Chains

NAMES = 12
MESSAGES = 360
OPTIONS = {entry.key: str(SMALL[entry.name]) for entry in options_of(MessageStoreConfig) if entry.name in SMALL}
Queues = dict[str, tuple[tuple[int, int], list[bytes]]]
"""Offsets and bodies of each lite topic."""


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off syncs: these tests simulate no power cut."""
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda _descriptor: None))
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def settle(store: MessageStore) -> None:
    store._keeper.sync_queues()
    store.dispatch()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose lite topics have several segments of log and units; some were deleted, one of these lives again."""
    path = tmp_path_factory.mktemp("lite") / "store"
    store = opened_lite(path)
    for number in range(MESSAGES):
        put(store, number, f"s{number % NAMES}")
        put(store, number, None, b"Plain")
    store.dispatch()
    store.delete_lite([b"Parent$s1", b"Parent$s2"])
    settle(store)
    put(store, 0, "s1")
    put(store, 1, "s1")
    store.dispatch()
    store.shutdown()
    with_topics(path)
    return path


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "store")
    return tmp_path / "store"


def queues_of(path: Path) -> Queues:
    """Opens the store as a broker does."""
    store = opened_lite(path)
    store.dispatch()
    found: Queues = {}
    for number in range(NAMES):
        topic = lite_topic(b"Parent$s%d" % number)
        first, end = store.queue_range(topic, 0)
        result = store.get_message(topic, 0, first, 64, 1 << 20)
        found[f"s{number}"] = (first, end), [bytes(view) for view in result.views]
    store.shutdown()
    return found


@pytest.fixture(scope="module")
def expected(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Queues:
    copy = tmp_path_factory.mktemp("expected") / "store"
    shutil.copytree(written, copy)
    found = queues_of(copy)
    count = -(-MESSAGES // NAMES)
    assert found["s1"][0] == (count, count + 2)
    assert found["s2"][0] == (count, count)
    assert len(found["s0"][1]) == count
    return found


def keep(_store: Path) -> None:
    pass


def lose_units(store: Path) -> None:
    shutil.rmtree(store / "rucola-lite/units")


def damage_a_unit(store: Path) -> None:
    segment = sorted((store / "rucola-lite/units").iterdir())[0]
    content = bytearray(segment.read_bytes())
    content[45] ^= 1
    segment.write_bytes(content)


@pytest.mark.parametrize("before", [keep, lose_units, damage_a_unit])
def test_a_rebuild_keeps_what_no_record_tells(
    before: Callable[[Path], None], store: Path, expected: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_scan, "_LITE_BYTES", 100)
    monkeypatch.setattr(rebuild_lite, "_READ_BYTES", 70)
    before(store)
    report = rebuild(str(store), options=OPTIONS)
    assert (report.lite_topics, report.published) == (NAMES, True)
    assert not list((store / "consumequeue").glob("%LMQ%*"))
    assert verify(str(store)).clean
    assert queues_of(store) == expected
    assert not (store / "quarantine").exists()


def test_without_the_table_deletions_are_forgotten_as_by_the_broker(store: Path, expected: Queues) -> None:
    (store / "rucola-lite/table").unlink()
    by_broker = store.with_name("broker")
    shutil.copytree(store, by_broker)
    rebuild(str(store), options=OPTIONS)
    found = queues_of(store)
    assert found == queues_of(by_broker) != expected
    assert found["s2"][0] == (0, expected["s2"][0][1])


def test_a_missing_directory_is_built_if_the_options_say_so(store: Path) -> None:
    shutil.rmtree(store / "rucola-lite")
    rebuild(str(store), options=OPTIONS)
    assert not (store / "rucola-lite").exists()
    report = rebuild(str(store), options=OPTIONS | {"enableLmq": "true", "enableMultiDispatch": "true"})
    assert report.lite_topics == NAMES
    assert (store / "rucola-lite/table").exists()


def test_a_store_of_rocketmq_gets_consume_queues(store: Path) -> None:
    shutil.rmtree(store / "rucola-lite")
    (store / "rucola-watermark").unlink()
    report = rebuild(str(store), options=OPTIONS | {"enableLmq": "true", "enableMultiDispatch": "true"})
    assert report.lite_topics == 0
    assert (store / "consumequeue/%LMQ%$Parent$s3/0").is_dir()
    assert not (store / "rucola-lite").exists()


def test_counters_outlive_the_expired_log(store: Path, expected: Queues) -> None:
    first = sorted((store / "commitlog").iterdir())[0]
    first.unlink()
    before = store.with_name("before")
    shutil.copytree(store, before)
    rebuild(str(store), options=OPTIONS)
    found = queues_of(store)
    assert found == queues_of(before)
    assert {name: queue[0][1] for name, queue in found.items()} == {
        name: queue[0][1] for name, queue in expected.items()
    }
    assert found["s0"][0][0] > 0
    offline = OfflineStore(str(store))
    view = offline.lite_view()
    assert view is not None
    places = view.records([lite_topic(b"Parent$s0"), lite_topic(b"Parent$nobody")])
    assert places is not None
    assert len(places) == len(found["s0"][1])
    assert places[0][0] >= offline.min_offset() > 0
    assert view.records([lite_topic(b"Parent$s0")], most=len(places) - 1) is None
    view.close()
    offline.close()


def test_a_rebuild_that_was_interrupted_begins_the_lite_topics_again(
    store: Path, expected: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rebuild_module, "build_lite", fail)
        with pytest.raises(KeyboardInterrupt):
            rebuild(str(store), options=OPTIONS)
    leaving = store / "rebuild/new/rucola-lite/units"
    leaving.mkdir(parents=True)
    (leaving / "00000000000000000000").write_bytes(b"\1" * 4000)
    rebuild(str(store), options=OPTIONS)
    assert queues_of(store) == expected


def test_repair_replaces_damaged_lite_topics_and_undo_brings_them_back(store: Path, expected: Queues) -> None:
    damage_a_unit(store)
    damaged = {path.name: path.read_bytes() for path in (store / "rucola-lite/units").iterdir()}
    assert FindingKind.LITE_TOPICS in verify(str(store)).counts
    report = repair(str(store), options=OPTIONS)
    assert report.left == 0
    assert undo(str(store)) > 0
    assert {path.name: path.read_bytes() for path in (store / "rucola-lite/units").iterdir()} == damaged
    repair(str(store), options=OPTIONS)
    assert queues_of(store) == expected


def test_a_salvage_has_the_lite_topics_of_its_source(store: Path, expected: Queues) -> None:
    output = store.with_name("saved")
    salvage([str(store)], str(output))
    found = queues_of(output)
    # Fillers take the place of nothing here, so all records are at their old places.
    assert found == expected
    assert verify(str(output)).clean


def test_a_salvage_of_a_bare_log_has_what_the_log_tells(store: Path) -> None:
    output = store.with_name("saved")
    options = OPTIONS | {"enableLmq": "true", "enableMultiDispatch": "true"}
    salvage([str(store / "commitlog")], str(output), options=options)
    assert queues_of(output)["s2"][0][0] == 0


def test_bare_light_queues_stay_directories(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", enable_lmq=True, enable_multi_dispatch=True)
    put(store, 1, "s1,%LMQ%bare")
    store.dispatch()
    store.shutdown()
    rebuild(with_topics(tmp_path / "store"), options=OPTIONS)
    assert (tmp_path / "store/consumequeue/%LMQ%bare/0").is_dir()
    assert verify(str(tmp_path / "store")).clean


def units_of(store: Path) -> list[LiteUnit]:
    content = b"".join(path.read_bytes() for path in sorted((store / "rucola-lite/units").iterdir()))
    found = (decode_unit(content[at : at + LITE_UNIT_BYTES]) for at in range(0, len(content), LITE_UNIT_BYTES))
    return [unit for unit in found if unit is not None]


def change_unit(store: Path, cell: int, **fields: int) -> None:
    """Changes a unit so that its checksum is right."""
    unit = units_of(store)[cell]._replace(**fields)
    at = cell * LITE_UNIT_BYTES
    for path in sorted((store / "rucola-lite/units").iterdir()):
        if at < path.stat().st_size:
            content = bytearray(path.read_bytes())
            content[at : at + LITE_UNIT_BYTES] = encode_unit(unit)
            path.write_bytes(content)
            return
        at -= path.stat().st_size


def change_table(store: Path, name: bytes, **fields: int) -> None:
    """Changes the row of a lite topic, with right checksums."""
    files, columns = Files(), LiteColumns()
    files.hold(str(store))
    head = read_table(files, str(store / "rucola-lite/table"), columns)
    names = LiteNames(files, str(store / "rucola-lite/names"), 0)
    names.load()
    names.build(columns.nexts)
    for column, value in fields.items():
        getattr(columns, column)[names.find(name)] = value
    write_table(files, str(store / "rucola-lite/table"), head, encode_parts(columns, head.names))


def cell_of(store: Path, number: int) -> int:
    """The cell of the unit of the ``number``-th message."""
    return [cell for cell, unit in enumerate(units_of(store)) if unit.size > 0][number]


@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (damage_a_unit, "a unit is damaged"),
        (lose_units, "units are missing"),
        (lambda store: change_unit(store, cell_of(store, 200), back=3), "does not lead to the unit before it"),
        (lambda store: change_unit(store, cell_of(store, 200), queue_offset=77), "units of other messages"),
        (lambda store: change_unit(store, cell_of(store, 200), name_id=5), "does not lead to the unit before it"),
        (lambda store: change_table(store, b"Parent$s4", nexts=3), "1 rows do not fit the units, the first is that of"),
        (lambda store: change_table(store, b"Parent$s4", starts=99), "Parent$s4"),
        (lambda store: change_table(store, b"Parent$s4", lasts=1), "Parent$s4"),
        (lambda store: change_table(store, b"Parent$s4", lasts=4_000), "Parent$s4"),
    ],
)
def test_verify_finds_damaged_units_links_and_counters(
    damage: Callable[[Path], None], detail: str, store: Path
) -> None:
    assert verify(str(store)).clean
    damage(store)
    report = verify(str(store))
    assert set(report.counts) == {FindingKind.LITE_TOPICS}
    assert any(detail in finding.detail for finding in report.findings)


def test_verify_finds_nothing_after_expiry_kill_and_names_that_were_dropped(store: Path) -> None:
    again = opened_lite(store)
    for number in range(20):
        put(again, number, f"t{number % 3}")
    again.dispatch()
    again.delete_lite([b"Parent$t1"])
    settle(again)
    killed = store.with_name("killed")
    shutil.copytree(store, killed)
    again.shutdown()
    assert FindingKind.LITE_TOPICS not in verify(str(killed)).counts
    sorted((store / "commitlog").iterdir())[0].unlink()
    assert FindingKind.LITE_TOPICS not in verify(str(store)).counts


def test_a_name_that_was_dropped_and_whose_units_came_back_leads_nowhere() -> None:
    chains = _Chains(1, TableHead(1, 0, 3, 3))
    first = LiteUnit(0, 100, 0, 0, 0, 0)
    assert chains.takes(0, first)
    assert not chains.takes(1, first._replace(physical_offset=100))
    assert chains.takes(2, LiteUnit(0, -1, 100, 0, 0, 0))
    assert chains.takes(3, first._replace(physical_offset=200))
