"""Creates, changes, lists and deletes consumer groups by request (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests
200, 201, 207, 225, 352, 353).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from rucola.broker.lazy_pop_services import LazyPopServices
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.offset.offset_resets import OffsetResets
from rucola.broker.processor.responses import success
from rucola.broker.processor.whole_table import Encode, WholeTable
from rucola.broker.registration import answer_when_told
from rucola.broker.subscription.group_attributes import change_group_attributes
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_validator import GROUP_CHARACTERS_MAX, is_group_name
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.bodies.configs import GroupForbidden, SubscriptionGroupList, SubscriptionGroupWrapper
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import (
    DeleteSubscriptionGroupRequestHeader,
    GroupForbiddenRequestHeader,
    GroupRequestHeader,
)
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel

_RETRY_QUEUES_MAX = 1024


class GroupManageProcessor:
    """Manages consumer groups."""

    def __init__(
        self,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        resets: OffsetResets,
        pops: LazyPopServices,
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._resets = resets
        self._pops = pops
        self._whole = WholeTable(self._copy, lambda: self._groups.data_version)

    def update_group(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 200: creates or changes a group."""
        data = fastjson.load_object(command.body, "SubscriptionGroupConfig")
        try:
            config = SubscriptionGroupConfig.from_dict(data)
        except (TypeError, ValueError) as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        return answer_when_told(success(command), [self._groups.update(self._changed(config))])

    def update_groups(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 225: creates or changes several groups, all or none."""
        configs = [self._changed(config) for config in SubscriptionGroupList.decode(command.body).group_config_list]
        return answer_when_told(success(command), [self._groups.update_all(configs)])

    def delete_group(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 207: deletes a group."""
        header = DeleteSubscriptionGroupRequestHeader.from_ext_fields(command.ext_fields)
        group = header.group_name
        written: list[asyncio.Future[None] | None] = [self._groups.delete(group)]
        if header.clean_offset:
            self._offsets.remove_group(group)
            self._resets.remove_group(group)
            written += [self._offsets.persist(), self._resets.persist(), self._pops.group_deleted(group)]
        return answer_when_told(success(command), written)

    def all_groups(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 201: all groups in one response, even if the request asks for pages, as in RocketMQ."""
        return self._whole.answer(command)

    def _changed(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """A group as it will be stored. It keeps the attributes that the request does not change."""
        _check(config)
        known = self._groups.table.get(config.group_name)
        attributes = change_group_attributes(None if known is None else known.attributes, config.attributes)
        return replace(config, attributes=attributes)

    def _copy(self) -> Encode:
        groups = self._groups
        forbidden = {group: masks.copy() for group, masks in groups.forbidden.items()}
        return SubscriptionGroupWrapper(groups.table.copy(), forbidden, groups.data_version).encode

    def group_config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 352: a group's configuration."""
        config = self._groups.table.get(GroupRequestHeader.from_ext_fields(command.ext_fields).group)
        if config is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(config.to_dict()))

    def group_forbidden(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 353: answers whether a group may read a topic; the permission is changed first if the request sets
        it.
        """
        header = GroupForbiddenRequestHeader.from_ext_fields(command.ext_fields)
        written = None
        if header.readable is not None:
            if not is_group_name(header.group):
                raise BrokerError(ResponseCode.INVALID_PARAMETER, "the field group does not hold the name of a group")
            written = self._groups.set_readable(header.group, header.topic, header.readable)
        readable = self._groups.is_readable(header.group, header.topic)
        answer = success(command, None, GroupForbidden(header.group, header.topic, readable))
        return answer_when_told(answer, [written])


def _check(config: SubscriptionGroupConfig) -> None:
    """Refuses a group with an invalid name or number of retry queues. The name becomes part of the name of a topic,
    and so of a directory.
    """
    if not is_group_name(config.group_name):
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"the group needs a name of 1 to {GROUP_CHARACTERS_MAX} of the characters %|a-zA-Z0-9_-",
        )
    if not 0 <= config.retry_queue_nums <= _RETRY_QUEUES_MAX:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"retryQueueNums: 0 to {_RETRY_QUEUES_MAX} are allowed")
