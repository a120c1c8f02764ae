"""What a slave asks its master's broker port: sizes and options of the store, where the log begins and ends, tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from rucola.client.config import ClientConfig
from rucola.client.instance import client_options
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.formats.tables import (
    consumer_offset_pieces,
    decode_consumer_offsets,
    decode_delay_offsets,
    encode_delay_offsets,
    subscription_group_pieces,
    topic_pieces,
)
from rucola.protocol.bodies.configs import SubscriptionGroupWrapper
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.protocol.codes import RequestCode
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.clock import Clock

STORE_KEYS = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "enableConsumeQueueExt",
    "mappedFileSizeConsumeQueueExt",
    "maxHashSlotNum",
    "maxIndexNum",
    "messageDelayLevel",
    "enableLmq",
    "enableMultiDispatch",
)
"""Options of a store that decide what its files look like; a copy takes them over."""


_TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


class LogBounds(NamedTuple):
    """Physical offsets of the first byte of a log and after its last one; 0 and 0 for an empty log."""

    min_offset: int
    max_offset: int


class MasterTables(NamedTuple):
    """Copies of a broker's tables.

    Attributes:
        files: content of each file of ``config/`` by its name.
        topics: the topics by name.
    """

    files: dict[str, bytes]
    topics: dict[str, TopicConfig]


class MasterBroker:
    """Sends requests to one broker. Event loop only.

    Its methods raise ``RemotingError`` if the broker does not answer, ``BrokerError`` if it refuses, and
    ``FormatError`` if the answer cannot be understood.

    Args:
        address: ``host:port``.
        config: credentials.
        clock: gives the time for signatures.
        options: of the connection, instead of ``config``'s.
    """

    def __init__(self, address: str, config: ClientConfig, clock: Clock, options: ClientOptions | None = None) -> None:
        self._address = address
        self._client = RemotingClient(options or client_options(config, clock))
        self._api = AdminApi(self._client)

    async def store_options(self) -> dict[str, str]:
        """Returns the broker's options among ``STORE_KEYS``, as texts."""
        values = await self._api.broker_config(self._address)
        return {key: values[key] for key in STORE_KEYS if key in values}

    async def log_bounds(self) -> LogBounds:
        """Returns where the log begins and ends."""
        values = await self._api.runtime_info(self._address)
        # A broker of RocketMQ with an empty log says -1.
        first, last = (_offset(values, key) for key in ("commitLogMinOffset", "commitLogMaxOffset"))
        return LogBounds(max(first, 0), max(last, 0))

    async def tables(self) -> MasterTables:
        """Returns topics, groups, consumer offsets and the progress of the delay levels."""
        bodies = [await self.table(code) for code in _TABLES]
        return await asyncio.to_thread(_decoded, *bodies)  # 100,000 topics take more than a second

    async def table(self, code: RequestCode) -> bytes:
        """Returns the body of the answer to a request for a whole table, which has no fields."""
        return await self._api.whole_table(self._address, code)

    async def lite_rows(self, first: int) -> tuple[bytes, int | None]:
        """Returns a page of lite topics (``broker.lite.slave_rows``), and where the next one begins; None if the broker
        does not know pages.
        """
        return await self._api.lite_rows(self._address, first)

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()


def _offset(values: dict[str, str], key: str) -> int:
    text = values.get(key, "")
    number = number_in(text, -1, INT64_MAX)
    if number is None:
        raise FormatError("runtime information of a broker", 0, f"an offset as {key}", repr(text[:40]))
    return number


def _decoded(topics_body: bytes, groups_body: bytes, offsets_body: bytes, delays_body: bytes) -> MasterTables:
    topics = TopicConfigSerializeWrapper.decode(topics_body)
    groups = SubscriptionGroupWrapper.decode(groups_body)
    files = {
        "topics.json": _joined(topic_pieces(topics.data_version, topics.topic_config_table)),
        "subscriptionGroup.json": _joined(
            subscription_group_pieces(groups.data_version, groups.subscription_group_table, groups.forbidden_table)
        ),
        "consumerOffset.json": _joined(consumer_offset_pieces(*decode_consumer_offsets(offsets_body))),
        "delayOffset.json": encode_delay_offsets(*decode_delay_offsets(delays_body)),
    }
    return MasterTables(files, topics.topic_config_table)


def _joined(pieces: Iterator[bytes]) -> bytes:
    return b"".join(pieces)
