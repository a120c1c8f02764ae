"""Sets and shows how many bytes groups may read from the disk, and sets whether the operating system reads ahead
(RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 2001 to 2004).
"""

from __future__ import annotations

from rucola.broker.cold_data_flow import ColdDataFlow
from rucola.broker.processor.broker_manage import read_options
from rucola.broker.processor.responses import success
from rucola.broker.topic.topic_validator import is_group_name
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore

READ_AHEAD_MODE = "READ_AHEAD_MODE"
_MADV_NORMAL, _MADV_RANDOM = 0, 1
_THRESHOLD_MAX = (1 << 63) - 1
_GROUPS_MAX = 10_000


class ColdDataProcessor:
    """Changes the thresholds of groups and the read-ahead of the log."""

    def __init__(
        self,
        flow: ColdDataFlow,
        store: MessageStore,
    ) -> None:
        self._flow = flow
        self._store = store

    def update_thresholds(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 2001: sets all given thresholds or none; the body has ``group=bytes`` lines."""
        thresholds = {}
        for group, text in read_options(bytes(command.body)).items():
            if not is_group_name(group):
                raise BrokerError(ResponseCode.INVALID_PARAMETER, f"{group!r} is not the name of a group")
            digits = text.strip()
            if not digits.isascii() or not digits.isdigit() or int(digits) > _THRESHOLD_MAX:
                raise BrokerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"{group}={text}: a number of bytes from 0 to {_THRESHOLD_MAX} is allowed",
                )
            thresholds[group] = int(digits)
        if len(self._flow.thresholds | thresholds) > _GROUPS_MAX:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"at most {_GROUPS_MAX} groups can have thresholds")
        self._flow.thresholds |= thresholds
        return success(command)

    def remove_threshold(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 2002: removes a threshold; the body is the name of the group."""
        self._flow.thresholds.pop(bytes(command.body).decode("utf-8", "replace"), None)
        return success(command)

    def info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 2003: the thresholds, and how much the groups have read from the disk."""
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(self._flow.info()))

    def set_read_mode(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 2004: whether a read of the log also loads the bytes after the record; the setting lasts until the
        broker restarts.
        """
        text = command.ext_fields.get(READ_AHEAD_MODE)
        if text is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode param error")
        if text not in (str(_MADV_NORMAL), str(_MADV_RANDOM)):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
        self._store.set_read_ahead(text == str(_MADV_NORMAL))
        return command.answer(ResponseCode.SUCCESS, f"set commitlog readahead mode success, mode: {text}")
