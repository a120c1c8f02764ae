"""Members of a group are notified of changes: in time, once for many changes, not before the retry topic is known."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.brokers import Unconnected
from tests.tables import Tables, keep_nothing

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.client.group_changes import GroupChanges
from rucola.broker.config import BrokerConfig
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import decode_frame


class Member(Unconnected):
    """A member's connection, and the notifications that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []

    def send_oneway(self, frame: bytes) -> None:
        self.frames.append(frame)


class Room:
    def __init__(self) -> None:
        self.tables = Tables(lambda _: None)
        self.clock, self.loop = self.tables.clock, self.tables.loop
        config = BrokerConfig()
        self.topics = TopicConfigManager(config, self.tables.keep, lambda: 1)
        groups = SubscriptionGroupManager(True, keep_nothing(), lambda: 1)
        filters = ConsumerFilterManager(keep_nothing(), lambda: 1)
        changes = GroupChanges(config, self.topics, groups, filters, cast(Any, self.loop))
        self.consumers = ConsumerManager()
        self.consumers.on_change(changes.tell)

    def join(self, member: Member) -> None:
        client = ClientChannel(member, f"id{id(member)}", "JAVA", 479, 0.0)
        self.consumers.register(client, "g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", None)


def test_many_changes_are_told_once_to_each_member() -> None:
    room = Room()
    members = [Member() for _ in range(1000)]
    for member in members:
        room.join(member)
    room.loop.run()
    assert [len(members[number].frames) for number in (0, 31, 32, 999)] == [33, 2, 1, 1], (
        "small groups are notified of each change"
    )
    for member in members:
        member.frames = member.frames[-1:]
    told = decode_frame(members[0].frames[0])
    assert (told.code, told.is_oneway) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)
    assert told.ext_fields == {"consumerGroup": "g"}
    late = [Member() for _ in range(400)]
    for member in late:
        room.join(member)
        room.loop.run()
    assert len(members[0].frames) == 1, "after a notification, further changes wait"
    room.clock.advance(199)
    room.loop.run()
    assert len(late[-1].frames) == 0
    room.clock.advance(1)
    room.loop.run()
    assert {len(member.frames) for member in members} == {2} and {len(member.frames) for member in late} == {1}
    room.clock.advance(1000)
    room.loop.run()
    assert len(members[0].frames) == 2, "nothing has changed since"


def test_members_that_left_are_not_told_and_the_last_one_leaves_nobody_to_tell() -> None:
    room = Room()
    stays, leaves = Member(), Member()
    room.join(stays)
    room.join(leaves)
    room.consumers.unregister("g", leaves)
    assert (len(stays.frames), len(leaves.frames)) == (3, 1)
    room.consumers.unregister("g", stays)
    assert len(stays.frames) == 3
    room.join(stays)
    assert len(stays.frames) == 4, "a group that comes back is notified"


def test_members_are_told_when_the_retry_topic_is_known() -> None:
    """Members request the route of the retry topic as soon as they are notified. If the name servers do not know it
    yet, members wait 20 s.
    """
    room = Room()
    registration: asyncio.Future[None] = asyncio.Future(loop=cast(Any, room.loop))
    room.topics.on_register(lambda _: registration)
    room.topics.create_for_group("%RETRY%g", 1)
    member = Member()
    room.join(member)
    room.tables.write()
    assert not member.frames
    registration.set_result(None)
    room.loop.run()
    assert len(member.frames) == 1
