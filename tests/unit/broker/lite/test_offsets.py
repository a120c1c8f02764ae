"""Offsets of groups in lite topics: what a restart, a kill, a power cut and damage leave of them."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.broker.lite.kept_offsets import KeptOffsets

from rucola.broker.lite import offset_files
from rucola.common.data_version import DataVersion
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.lite_offsets import FILE_NAME
from rucola.remoting.fairness.steps import at_once
from rucola.testing.crash_states import crash_states
from rucola.testing.simulated_os import files_on

A, B, C = b"P$a", b"P$b", b"Q$c"
BASE = f"/store/config/{FILE_NAME}"


@pytest.fixture
def kept() -> KeptOffsets:
    made = KeptOffsets()
    made.send([A, B], 3)
    made.send([C], 2)
    return made


@pytest.mark.parametrize("ends", ["restart", "kill"])
def test_what_was_written_comes_back(kept: KeptOffsets, ends: str) -> None:
    kept.commit(A, 1)
    kept.commit(B, 2)
    kept.persist()
    kept.commit(A, 2)
    kept.commit(C, 1, group="other")
    kept.persist()
    getattr(kept, ends)()
    assert [kept.get(A), kept.get(B), kept.get(C), kept.get(C, "other")] == [2, 2, -1, 1]
    assert kept.offsets.offsets_of(kept.id(C)) == {"other": 1}
    assert len(kept.offsets) == 3
    assert sorted(row for rows in kept.offsets.rows() for row in rows) == [
        ("g", kept.id(A), 2),
        ("g", kept.id(B), 2),
        ("other", kept.id(C), 1),
    ]


def test_a_kill_takes_what_was_not_written(kept: KeptOffsets) -> None:
    kept.commit(A, 1)
    kept.persist()
    kept.commit(A, 2)
    kept.kill()
    assert kept.get(A) == 1
    kept.commit(A, 3)
    kept.persist()
    kept.kill()
    assert kept.get(A) == 3


@pytest.mark.parametrize("ends", ["restart", "kill"])
def test_what_was_forgotten_does_not_come_back(kept: KeptOffsets, ends: str) -> None:
    for name in (A, B):
        kept.commit(name, 2)
        kept.commit(name, 3, group="other")
    kept.persist()
    kept.offsets.forget(kept.id(A))
    assert not kept.offsets.has_any(kept.id(A)) and kept.offsets.has_any(kept.id(B))
    kept.persist()
    getattr(kept, ends)()
    assert [kept.get(A), kept.get(A, "other"), kept.get(B), kept.get(B, "other")] == [-1, -1, 2, 3]


@pytest.mark.parametrize("ends", ["restart", "kill"])
def test_a_group_that_is_made_again_has_no_offsets(kept: KeptOffsets, ends: str) -> None:
    kept.commit(A, 2)
    kept.commit(B, 2)
    kept.commit(A, 1, group="other")
    kept.persist()
    kept.offsets.forget_group("g")
    assert kept.get(A) == -1
    kept.commit(B, 1)
    kept.persist()
    getattr(kept, ends)()
    assert [kept.get(A), kept.get(B), kept.get(A, "other")] == [-1, 1, 1]
    for _ in range(256):
        kept.offsets.persist()
    assert len(kept.offsets) == 2


def test_offsets_follow_their_names() -> None:
    """Another store has other ids, and lacks a name."""
    kept, other = KeptOffsets(), KeptOffsets()
    kept.send([b"P$gone"])
    kept.send([A, B], 3)
    for offset, name in enumerate((b"P$gone", A, B)):
        kept.commit(name, offset)
    kept.restart()
    other.send([B], 3)
    other.send([A], 3)
    content = files_on(kept.life.disk).read_file(BASE)
    assert content is not None
    files_on(other.life.disk).make_directory("/store/config")
    files_on(other.life.disk).write_file(BASE, content)
    for _ in range(2):
        other.restart()
        assert [other.get(A), other.get(B), len(other.offsets)] == [1, 2, 2]
        other.commit(A, 1)


def test_offsets_survive_a_rebuild_of_the_lite_topics(kept: KeptOffsets) -> None:
    kept.send([b"P$z"], 2)
    for offset, name in enumerate((A, B, C, b"P$z")):
        kept.commit(name, offset % 2 + 1)
    kept.restart()
    kept.life.store.shutdown()
    names = kept.topics.names
    content = files_on(kept.life.disk).read_file("/store/rucola-lite/names")
    assert content is not None
    files_on(kept.life.disk).remove_tree("/store/rucola-lite")
    kept.open(kept.life.disk)
    assert names is not kept.topics.names
    assert [kept.get(name) for name in (A, B, C, b"P$z")] == [1, 2, 1, 2]


@pytest.mark.parametrize("committed", [3, 9])
def test_an_offset_beyond_its_queue_is_lowered_after_a_kill(kept: KeptOffsets, committed: int) -> None:
    kept.commit(A, committed)
    kept.persist()
    kept.kill()
    assert kept.get(A) == 3 and kept.offsets.clamped == (committed > 3)


def test_the_journal_is_replaced_by_a_base(kept: KeptOffsets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_files, "_JOURNAL_ROWS_LEAST", 4)
    sizes = []
    for number in range(30):
        kept.commit((A, B)[number % 2], number % 4)
        kept.persist()
        files = files_on(kept.life.disk)
        sizes.append(sum(files.length(f"/store/config/{name}") for name in config(kept)))
    assert max(sizes) < 600 and len(config(kept)) <= 2
    kept.kill()
    assert [kept.get(A), kept.get(B)] == [28 % 4, 29 % 4]


def config(kept: KeptOffsets) -> list[str]:
    return [name for name in files_on(kept.life.disk).list_files("/store/config") if name.startswith(FILE_NAME)]


def test_a_torn_batch_ends_the_journal(kept: KeptOffsets) -> None:
    kept.commit(A, 1)
    kept.persist()
    files, path = files_on(kept.life.disk), f"{BASE}.0"
    first = files.read_file(path) or b""
    kept.commit(A, 2)
    kept.persist()
    content = files.read_file(path) or b""
    for cut in range(len(first), len(content)):
        files_on(kept.life.disk).write_file(path, content[:cut])
        kept.kill()
        assert kept.get(A) == 1
    kept.commit(A, 3)
    kept.persist()
    kept.kill()
    assert kept.get(A) == 3


def test_damage_is_told_apart_from_a_torn_batch(kept: KeptOffsets) -> None:
    for offset in (1, 2):
        kept.commit(A, offset)
        kept.persist()
    files, path = files_on(kept.life.disk), f"{BASE}.0"
    content = bytearray(files.read_file(path) or b"")
    content[40] ^= 1
    files.write_file(path, bytes(content))
    with pytest.raises(StoreDamagedError, match=r"config/rucolaLiteOffsets\.0, position 0: .*whole batch"):
        kept.kill()


@pytest.mark.parametrize("at", [0, 9, 30, 66, 75, 85, -1])
def test_a_damaged_base_stops_the_start(kept: KeptOffsets, at: int) -> None:
    kept.commit(A, 1)
    kept.restart()
    files = files_on(kept.life.disk)
    content = bytearray(files.read_file(BASE) or b"")
    content[at] ^= 1
    files.write_file(BASE, bytes(content))
    with pytest.raises(StoreDamagedError, match="restore config/rucolaLiteOffsets"):
        kept.kill()


def test_a_missing_base_stops_the_start(kept: KeptOffsets) -> None:
    kept.commit(A, 1)
    kept.restart()
    kept.commit(A, 2)
    kept.persist()
    files_on(kept.life.disk).remove(BASE)
    with pytest.raises(StoreDamagedError, match="none, though a journal needs it"):
        kept.kill()


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("kind", ["write", "sync", "rename"])
def test_a_failed_write_is_repeated(kept: KeptOffsets, kind: str, replaces: bool) -> None:
    if kind == "rename" and not replaces:
        return
    kept.commit(A, 1)
    kept.persist()
    kept.commit(A, 2)
    if replaces:
        kept.offsets.finish()

    def refuse(at: str, path: str) -> None:
        if FILE_NAME in path and kind in at:
            raise DiskError(path, at, "no more")

    kept.life.disk.faults = refuse
    kept.persist()
    kept.life.disk.faults = None
    assert kept.supervisor.failures["writing of rucolaLiteOffsets"] == 1
    kept.commit(B, 1)
    kept.persist()
    kept.kill()
    assert [kept.get(A), kept.get(B)] == [2, 1]


def test_a_table_of_rocketmq_counts_unless_it_is_ours(kept: KeptOffsets) -> None:
    kept.commit(A, 2)
    version, table = DataVersion(0, 5, 7), kept.offsets.table()
    assert table == {"%LMQ%$P$a@g": {0: 2}}
    kept.offsets.note_written(version)
    kept.restart()
    kept.commit(A, 3)
    assert kept.offsets.take_table(version, dict(table)) == 0 and kept.get(A) == 3
    theirs = {**table, "%LMQ%$P$b@g": {0: 1}, "%LMQ%$P$none@g": {0: 1}, "T@g": {0: 4}, "%LMQ%bare@g": {0: 5}}
    assert kept.offsets.take_table(DataVersion(0, 5, 8), theirs) == 2
    assert theirs == {"T@g": {0: 4}, "%LMQ%bare@g": {0: 5}}
    assert [kept.get(A), kept.get(B)] == [2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_power_cuts_at_every_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each, every offset is one that was committed at or after the last write that ended."""
    monkeypatch.setattr(offset_files, "_JOURNAL_ROWS_LEAST", 5)
    random, kept = Random(seed), KeptOffsets()
    names = (A, B, C)
    kept.send(names, 6)
    kept.restart()
    history: list[dict[tuple[str, bytes], int]] = [{}]
    certain, states, wrong = 0, 0, []

    def check(_kind: str, _path: str) -> None:
        nonlocal states
        for state in crash_states(kept.life.disk, random, 1):
            states += 1
            kept.life.disk.observer, observer = None, kept.life.disk.observer
            again = KeptOffsets.on(state.image)
            found = {
                (group, again.topics.names.name(lite_id)): offset
                for rows in again.offsets.rows()
                for group, lite_id, offset in rows
            }
            if found not in history[certain:]:
                wrong.append((found, history[certain:]))
            kept.life.disk.observer = observer

    kept.life.disk.observer = check
    for _ in range(25):
        model = history[-1].copy()
        for _ in range(random.randrange(4)):
            group, name = random.choice("gh"), random.choice(names)
            action = random.randrange(8)
            if action < 6:
                model[group, name] = random.randrange(6)
                kept.commit(name, model[group, name], group)
            elif action < 7:
                kept.offsets.forget(kept.id(name))
                model = {key: offset for key, offset in model.items() if key[1] != name}
            else:
                kept.offsets.forget_group(group)
                model = {key: offset for key, offset in model.items() if key[0] != group}
            history.append(model.copy())
        kept.persist()
        certain = len(history) - 1
    assert states > 50 and wrong == []


def test_a_slave_follows_its_master(kept: KeptOffsets) -> None:
    def follow(**theirs: int) -> None:
        table = {f"%LMQ%$P${name}@g": {0: offset} for name, offset in theirs.items()}
        table |= {"T@g": {0: 1}, "%LMQ%$P$unknown@g": {0: 1}}
        at_once(kept.offsets.follow(table))
        assert table == {"T@g": {0: 1}}

    follow(a=1, b=1)
    assert [kept.get(A), kept.get(B)] == [1, 1]
    kept.commit(A, 3)
    follow(a=2, b=2)
    assert [kept.get(A), kept.get(B)] == [3, 2], "committed here, and larger"
    follow(a=1, b=2)
    assert kept.get(A) == 1, "set back"
    kept.commit(A, 2)
    follow(b=2)
    assert [kept.get(A), kept.get(B)] == [2, 2]
    follow()
    assert [kept.get(A), kept.get(B)] == [2, -1]
    kept.persist()
    kept.kill()
    assert [kept.get(A), kept.get(B)] == [2, -1]


def test_a_base_may_be_the_new_one_though_its_write_failed(kept: KeptOffsets) -> None:
    """Then nothing must be appended to the old journal, which counts no more."""
    kept.commit(A, 1)
    kept.persist()
    kept.offsets.finish()

    def refuse(kind: str, path: str) -> None:
        if path == "/store/config":
            raise DiskError(path, kind, "no more")

    kept.life.disk.faults = refuse
    kept.persist()
    kept.life.disk.faults = None
    assert kept.supervisor.failures["writing of rucolaLiteOffsets"] == 1
    kept.commit(B, 1)
    kept.persist()
    kept.kill()
    assert [kept.get(A), kept.get(B)] == [1, 1]


def test_a_name_that_comes_again_has_its_own_offset(kept: KeptOffsets) -> None:
    """It has another id; what the journal says about the former one must not count."""
    former = kept.id(A)
    kept.commit(A, 3)
    kept.persist()
    kept.offsets.forget(former)
    kept.topics.delete([A])
    kept.life.keep()
    kept.life.store.dispatch()
    kept.topics.gone_to = kept.topics.units.end
    assert kept.topics.forget([A]) == 1
    kept.life.keep()
    kept.life.store.dispatch()
    assert kept.id(A) == -1
    kept.send([A], 2)
    kept.commit(A, 1)
    kept.persist()
    for _ in range(3):
        kept.life.flush()
        kept.life.keep()
    own = kept.id(A)
    kept.kill()
    assert kept.id(A) == own != former and kept.get(A) == 1
