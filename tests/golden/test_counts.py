"""Queries of topics, queues and offsets, which the queues of a store answer, give what a scan of the messages gives:
for all stores of RocketMQ, also the damaged ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.golden.loader import BROKER_STORES, DAMAGE_STORES, STORES, load, load_broker, load_files, write_files

from rucola.arrow import dataset, topic_dataset
from rucola.errors import RucolaError
from rucola.store.offline.offline_store import OfflineStore

PLACE = ["topic", "brokerName", "queueId", "queueOffset"]
CASES = [
    (directory, path.name.removesuffix(".tar.xz"))
    for directory in (STORES, BROKER_STORES, DAMAGE_STORES)
    for path in sorted(directory.glob("*.tar.xz"))
]
UNREADABLE = {"killed_bad_magic", "killed_bad_size", "inner_batch_cq", "inner_batch_roll", "refused_wrong_length"}
"""Stores with topics that a scan cannot read to its end."""
answered: list[bool] = []
"""For each topic of each store, whether the queues alone answered."""


def places(path: Path, topic: str | None, *more: str) -> Any:
    """The sorted places of all messages, or the error that ends the scan."""
    try:
        table: pa.Table = dataset(path, topic, null_bodies=True).to_table(columns=[*PLACE, *more])
    except (RucolaError, pa.ArrowException) as error:
        return error
    return sorted(tuple(row.values()) for row in table.select(PLACE).to_pylist())


@pytest.mark.few(25)
@pytest.mark.parametrize(("directory", "name"), CASES, ids=[name for _, name in CASES])
def test_queues_answer_as_messages_do(
    directory: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = {STORES: lambda: load(name).files, BROKER_STORES: lambda: load_broker(name).files}
    files = loaders.get(directory, lambda: load_files(directory, name))()
    if not any(path.startswith(("commitlog/", "consumequeue/")) for path in files):
        pytest.skip("no store")
    write_files(files, tmp_path)
    store = OfflineStore(str(tmp_path))
    topics = store.topics()
    store.close()
    numbered = topic_dataset.numbered_rows
    by_queues: list[object] = []
    monkeypatch.setattr(topic_dataset, "numbered_rows", lambda *a: (by_queues.append(a), numbered(*a))[1])
    for topic in (*topics, None):
        whole = places(tmp_path, topic, "flag")
        assert not by_queues
        found = places(tmp_path, topic)
        answered.append(bool(by_queues))
        by_queues.clear()
        if isinstance(whole, Exception):
            assert name in UNREADABLE
        else:
            assert found == whole, topic


def test_the_queues_answered_in_most_stores() -> None:
    assert sum(answered) >= len(answered) * 0.85
