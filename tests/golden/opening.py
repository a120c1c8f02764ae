"""Opens golden stores with our store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.golden.loader import STORES, Case

from rucola.common.options import options_of, parse_options
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

CASES = sorted(
    name
    for path in STORES.glob("*.tar.xz")
    if not (name := path.name.removesuffix(".tar.xz")).startswith(("config_", "refused_"))
)
"""Names of all stores that can be opened."""


def config_of(case: Case, path: Path) -> MessageStoreConfig:
    """Returns those options of the case that Rucola has. Records have a checksum property only if the case says so."""
    known = {entry.key for entry in options_of(MessageStoreConfig)}
    values = {key: str(value) for key, value in case.case["config"].items() if key in known}
    return parse_options(
        MessageStoreConfig, {"enabledAppendPropCRC": "false"} | values | {"storePathRootDir": str(path)}
    )


def store_of(case: Case, config: MessageStoreConfig, clock: ManualClock) -> MessageStore:
    """Returns the case's store, not loaded yet, with the types of its topics."""
    batch_topics = {
        name.encode() for name, attributes in case.case["topics"].items() if attributes.get("queue.type") == "BatchCQ"
    }
    return MessageStore(config, Files(), clock, is_batch_topic=batch_topics.__contains__)


def opened(case: Case, path: Path) -> MessageStore:
    """Runs the store in the directory; its clock is long after its last message, and appended messages are visible at
    once.
    """
    config = replace(config_of(case, path), flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    store = store_of(case, config, ManualClock(1_800_000_000_000))
    store.load()
    store.start()
    return store
