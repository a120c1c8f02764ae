"""Headers of 17, 200 and 207 (``protocol.md`` 2.7), as far as a client or tool of this package sends them."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.protocol.headers.header import CommandHeader, Int


@dataclass(slots=True)
class CreateTopicRequestHeader(CommandHeader):
    """17.

    Attributes:
        perm: or of ``PermName`` bits.
        attributes: ``+name=value`` to set and ``-name`` to remove, joined by commas.
        force: change a topic even where the broker would refuse it.
    """

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(slots=True)
class DeleteTopicRequestHeader(CommandHeader):
    """215."""

    topic: str


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(CommandHeader):
    """207. ``clean_offset``: forget the group's progress too."""

    group_name: str
    clean_offset: bool = False
