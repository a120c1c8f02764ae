"""Lite topics against a plain model: random messages, deletions, stops, kills and expired parts of the log."""

from __future__ import annotations

from random import Random

import pytest
from tests.kernels import kernel
from tests.lite_ledger import NAMES, LiteLedger, lite_config, lite_message
from tests.sizes import size

from rucola.store.lite import lite_names, lite_topics
from rucola.store.recovery import lite_recovery
from rucola.testing.store_life import StoreLife, empty_disk

STEPS = size(120, 600)
_USED = {
    lite_names: (
        "fill_slots",
        "find_name",
        "hash_name",
        "hash_names",
        "insert_name",
        "refill_slots",
        "remove_name",
        "set_parents",
    ),
    lite_recovery: ("apply_units", "check_units", "checksum_names", "count_live", "rows_above"),
    lite_topics: ("find_rows",),
}


@pytest.fixture
def in_form(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_in_form = kernel("formats._lite_cy", form)
    for module, names in _USED.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(kernel_in_form, name))
    monkeypatch.setattr(lite_names, "walk_names", kernel_in_form.walk_names)


class Run:
    """A store that is driven at random, and its ledger."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.life = StoreLife(empty_disk(), lite_config(sync=False, segment_bytes=4096))
        self.life.disk.versions = False
        self.ledger = LiteLedger()
        self.names = list(NAMES)
        self.forgotten = 0
        self.start()

    def start(self) -> None:
        self.life.load()
        self.check()
        self.life.store.start()

    def check(self) -> None:
        self.ledger.settle(self.life.store)
        self.ledger.check(self.life.store, self.life.store.max_offset)

    def put(self) -> None:
        if self.random.random() < 0.2:
            self.names.append(b"%b$n%d" % (self.random.choice((b"Parent", b"P")), len(self.names)))
        count = self.random.choice((1, 1, 1, 2, 5))
        names = self.random.sample(self.names[-12:] + list(NAMES), count)
        self.ledger.put(self.life.store, lite_message(self.random, names))

    def delete(self) -> None:
        self.life.turn()
        self.ledger.delete(self.life.store, self.random.sample(self.names, 2))
        if self.random.random() < 0.6:
            self.life.keep()
            self.life.dispatch()
            self.ledger.settle(self.life.store)

    def forget(self) -> None:
        self.life.turn()
        self.ledger.settle(self.life.store)
        self.forgotten += self.ledger.forget(self.life.store)
        if self.random.random() < 0.6:
            self.life.keep()
            self.life.dispatch()

    def stop(self) -> None:
        self.life.turn()
        self.life.store.shutdown()
        self.ledger.settle(self.life.store)
        self.start()

    def kill(self) -> None:
        self.start()

    def table(self) -> None:
        assert self.life.store.lite is not None
        self.life.store.lite._table_due = True
        self.life.keep()

    def expire(self) -> None:
        self.life.turn()
        self.life.expire()


@pytest.mark.parametrize("seed", range(size(4, 40)))
def test_lite_topics_show_what_a_plain_model_shows(in_form: None, seed: int) -> None:
    run = Run(seed)
    steps = (
        (run.put,) * 20
        + (run.life.turn,) * 4
        + (run.delete, run.delete, run.forget, run.stop, run.kill, run.table, run.expire)
    )
    for _ in range(STEPS):
        run.random.choice(steps)()
    run.life.turn()
    run.check()
    lite = run.life.store.lite
    assert lite is not None
    live: dict[bytes, int] = {}
    for name in run.names:
        row = lite.names.find(name)
        if row >= 0 and lite.columns.nexts[row] > lite.columns.starts[row]:
            parent = name.partition(b"$")[0]
            live[parent] = live.get(parent, 0) + 1
    assert {parent: count for parent, count in lite.parents().items() if count} == live
    assert f"{run.life.store.root}/quarantine/rucola-lite" not in run.life.disk.names
