"""Headers of what administrators ask of name servers (``protocol.md`` 2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.protocol.headers.header import CommandHeader, Int


@dataclass(slots=True)
class BrokerNameRequestHeader(CommandHeader):
    """205 and 327."""

    broker_name: str


@dataclass(slots=True)
class WipeWritePermResponseHeader(CommandHeader):
    """Answer to 205."""

    wipe_topic_count: Int


@dataclass(slots=True)
class AddWritePermResponseHeader(CommandHeader):
    """Answer to 327."""

    add_topic_count: Int


@dataclass(slots=True)
class GetTopicsByClusterRequestHeader(CommandHeader):
    """224."""

    cluster: str


@dataclass(slots=True)
class DeleteTopicFromNamesrvRequestHeader(CommandHeader):
    """216."""

    topic: str
    cluster_name: str | None = None


@dataclass(slots=True)
class RegisterTopicRequestHeader(CommandHeader):
    """217."""

    topic: str


@dataclass(slots=True)
class KVConfigRequestHeader(CommandHeader):
    """100, 101 and 102. All optional here: what is missing has an answer of its own."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


@dataclass(slots=True)
class GetKVConfigResponseHeader(CommandHeader):
    """Answer to 101."""

    value: str | None = None


@dataclass(slots=True)
class GetKVListRequestHeader(CommandHeader):
    """219."""

    namespace: str
