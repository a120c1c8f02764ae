"""Which master wrote which bytes: lists, what two of them have in common, and the file."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from rucola.common.numbers import INT64_MAX
from rucola.formats.auto_switch import EpochEntry
from rucola.runtime.files import Files
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import NO_COMMON_POINT, EpochList


def epochs(*entries: tuple[int, int]) -> EpochList:
    return EpochList(EpochEntry(*entry) for entry in entries)


THREE = epochs((1, 0), (2, 100), (5, 300))


def test_what_a_list_knows() -> None:
    assert (THREE.last, THREE.last_epoch) == ((5, 300), 5)
    assert [THREE.end_of(epoch) for epoch in (1, 2, 5)] == [100, 300, INT64_MAX]
    assert [THREE.at(offset) for offset in (0, 99, 100, 299, 300, 1 << 40)] == [
        (1, 0),
        (1, 0),
        (2, 100),
        (2, 100),
        (5, 300),
        (5, 300),
    ]
    assert epochs((2, 100)).at(99) is None
    assert (epochs().last, epochs().last_epoch, epochs().at(0)) == (None, -1, None)
    for unknown in (0, 3, 6):
        with pytest.raises(KeyError):
            THREE.end_of(unknown)


def test_a_new_epoch() -> None:
    assert THREE.append(6, 400) == epochs((1, 0), (2, 100), (5, 300), (6, 400))
    assert THREE.append(6, 300) == epochs((1, 0), (2, 100), (6, 300))
    for wrong in ((5, 400), (4, 400), (6, 299)):
        with pytest.raises(ValueError, match="cannot follow"):
            THREE.append(*wrong)


def test_an_election_replaces_what_the_list_says_of_its_epoch_and_of_lost_bytes() -> None:
    assert THREE.elected(5, 350) == epochs((1, 0), (2, 100), (5, 350))
    assert THREE.elected(6, 250) == epochs((1, 0), (2, 100), (6, 250))
    assert THREE.elected(6, 100) == epochs((1, 0), (6, 100))
    assert epochs().elected(1, 0) == epochs((1, 0))


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "point"),
    [
        (THREE, 400, THREE, 500, 400),
        (THREE, 500, THREE, 400, 400),
        (epochs((1, 0)), 500, epochs((1, 0), (2, 400)), 700, 400),
        (epochs((1, 0), (2, 400)), 700, epochs((1, 0)), 500, 400),
        (epochs((1, 0), (2, 100)), 500, epochs((1, 0), (2, 200)), 500, 100),
        (epochs((1, 0), (3, 100)), 500, epochs((1, 0), (2, 90)), 500, 90),
        (epochs((1, 0), (2, 100)), 90, epochs((1, 0), (2, 100)), 500, 90),
        (epochs((1, 0)), 500, epochs((3, 5)), 500, NO_COMMON_POINT),
        (epochs(), 500, epochs((3, 5)), 500, NO_COMMON_POINT),
    ],
)
def test_the_common_point(own: EpochList, own_end: int, other: EpochList, other_end: int, point: int) -> None:
    assert own.common_point(other, own_end, other_end) == point
    assert other.common_point(own, other_end, own_end) == point


def test_cut_learned_and_expired() -> None:
    assert THREE.cut(300) == epochs((1, 0), (2, 100))
    assert THREE.cut(301) == THREE
    assert THREE.cut(0) == epochs()
    assert epochs((1, 0), (2, 100)).learned(epochs((2, 100), (3, 150), (4, 200)), 200) == epochs(
        (1, 0), (2, 100), (3, 150)
    )
    assert epochs().learned(THREE, 301) == THREE
    assert THREE.learned(epochs((7, 900)), 300) == epochs((1, 0), (2, 100))
    assert THREE.expire(100) == THREE
    assert THREE.expire(101) == epochs((2, 100), (5, 300))
    assert THREE.expire(1 << 40) == epochs((5, 300))


class Replica:
    """A log as the epoch of each byte, and a list of its epochs."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.epochs = EpochList()


@pytest.mark.parametrize("seed", range(40))
def test_random_histories(seed: int) -> None:
    """Whoever follows a master has exactly its bytes below the common point, and never loses what is common: a byte of
    an epoch is the same on all replicas.
    """
    random, replicas = Random(seed), [Replica() for _ in range(3)]
    for epoch in range(1, 15):
        master = random.choice(replicas)
        if random.random() < 0.3 and master.log:  # what was not synced is gone
            del master.log[random.randrange(len(master.log)) :]
        master.epochs = master.epochs.elected(epoch, len(master.log))
        for _ in range(random.randrange(4)):
            master.log += [epoch] * random.randrange(4)
            for slave in random.sample(replicas, random.randrange(4)):
                if slave is not master:
                    _follow(slave, master, random)
    master = max(replicas, key=lambda replica: replica.epochs.last_epoch)
    for slave in replicas:
        if slave is not master:
            _follow(slave, master, random, everything=True)
            assert slave.log == master.log


def _follow(slave: Replica, master: Replica, random: Random, everything: bool = False) -> None:
    point = slave.epochs.common_point(master.epochs, len(slave.log), len(master.log))
    equal = next((at for at, pair in enumerate(zip(slave.log, master.log)) if pair[0] != pair[1]), None)  # noqa: B905
    point = max(point, 0)
    assert slave.log[:point] == master.log[:point]
    assert equal is None or point <= equal
    del slave.log[point:]
    slave.epochs = slave.epochs.learned(master.epochs, point)
    end = len(master.log) if everything else random.randint(point, len(master.log))
    for at in range(point, end):
        label = master.epochs.at(at)
        assert label is not None and label.epoch == master.log[at]
        if label.epoch != slave.epochs.last_epoch:
            slave.epochs = slave.epochs.append(*label)
        slave.log.append(master.log[at])


def store(path: Path) -> EpochStore:
    found = EpochStore(Files(), str(path))
    found.load()
    return found


def test_the_file_and_its_backup(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert first.epochs == epochs()
    first.write(epochs((1, 0)))
    assert (tmp_path / "epochFileCheckpoint").read_bytes() == b"1\n1725254278\n1-0\n"
    assert not (tmp_path / "epochFileCheckpoint.bak").exists()
    again = store(tmp_path)
    again.write(epochs((1, 0), (2, 168_719)))
    assert (tmp_path / "epochFileCheckpoint").read_bytes() == b"2\n1704689202\n1-0\n2-168719\n"
    assert (tmp_path / "epochFileCheckpoint.bak").read_bytes() == b"1\n1725254278\n1-0\n"
    (tmp_path / "epochFileCheckpoint").write_bytes(b"2\n1\n1-0\n2-5\n")  # a wrong checksum
    assert store(tmp_path).epochs == epochs((1, 0))
    (tmp_path / "epochFileCheckpoint.bak").write_bytes(b"")
    assert store(tmp_path).epochs == epochs()


def test_epochs_that_were_cut_are_in_no_backup(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for later in (epochs((1, 0)), epochs((1, 0), (2, 5)), epochs((1, 0), (3, 4))):
        kept.write(later)
    (tmp_path / "epochFileCheckpoint").unlink()
    assert store(tmp_path).epochs == epochs()


def test_no_epochs_leave_no_file(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write(epochs((1, 0)))
    kept.write(epochs((1, 0), (2, 5)))
    kept.write(epochs())
    assert list(tmp_path.iterdir()) == []
    assert store(tmp_path).epochs == epochs()
    kept.write(epochs((3, 7)))
    assert store(tmp_path).epochs == epochs((3, 7))
