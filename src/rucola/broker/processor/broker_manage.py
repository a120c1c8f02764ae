"""Shows and changes options, shows runtime information and removes expired files by request (RocketMQ 5.3.3,
``AdminBrokerProcessor``; requests 25, 26, 28, 306, 329, 907).

Without access control, anyone who reaches the port may send these requests. So a request can change only the options in
``REMOTE_KEYS``: numbers and switches, within the ranges that ``broker.conf`` allows. None of these options names a
file, an address, a program or a secret, or weakens a check.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from rucola.broker.processor.responses import success
from rucola.broker.runtime_info import RuntimeInfo
from rucola.broker.services import BrokerServices
from rucola.common.data_version import DataVersion
from rucola.common.java import parse_properties
from rucola.common.options import change_options, show_options
from rucola.errors import BrokerError, ConfigError
from rucola.protocol import fastjson
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

REMOTE_KEYS = frozenset(
    {
        "cgColdReadThreshold",
        "coldDataFlowControlEnable",
        "enableSingleTopicRegister",
        "enableSplitRegistration",
        "flushConsumerOffsetInterval",
        "globalColdReadThreshold",
        "litePullMessageEnable",
        "longPollingEnable",
        "notifyConsumerIdsChangedEnable",
        "pullThreadPoolQueueCapacity",
        "rejectPullConsumerEnable",
        "shortPollingTimeMills",
        "splitRegistrationSize",
        "useServerSideResetOffset",
    }
)
"""Options of ``BrokerConfig`` that a request may change. The broker reads these options at each use, so a change
applies at once.
"""
ADMINISTRATORS_KEYS = frozenset({"pullThreadPoolQueueCapacity", "rejectPullConsumerEnable"})
"""Options with which one peer could make the broker refuse all other peers. Without access control no request changes
these options.
"""
UNCHANGEABLE = {
    "enableNotifyAfterPopOrderLockRelease": ("true", "a queue that becomes free wakes the requests that wait for it"),
    "enablePopBufferMerge": ("false", "each pop and acknowledgement is stored immediately, not merged in memory"),
    "estimateAccumulation": ("false", "the number of messages that a filter skips is not estimated"),
}
"""Switches of RocketMQ that are fixed here: the value of each, and the reason. A request that sets a switch to its
fixed value is accepted and changes nothing.
"""
_BLACK_LIST = frozenset({"brokerConfigPath", "configBlackList"})
"""The keys that RocketMQ refuses to change; its refusal has the text ``_BLACK_LISTED``."""
_BLACK_LISTED = "Can not update config in black list."
_NOT_CHANGED = f"{_BLACK_LISTED} A request can change only {', '.join(sorted(REMOTE_KEYS))}."
CONFIG_BYTES_MAX = 64 * 1024
"""Largest size in bytes of a list of options; a longer list is refused unread."""


class BrokerManageProcessor:
    """Shows and changes the broker."""

    def __init__(
        self, services: BrokerServices, sends_waiting: Callable[[], int], ha_status: Callable[[], HARuntimeInfo]
    ) -> None:
        self._config = services.config
        self._store = services.store
        self._runtime_info = RuntimeInfo(services, sends_waiting)
        self._ha_status = ha_status
        self._cold_reads = services.cold_reads
        self._clock = services.clock
        self._version = DataVersion(0, services.clock.wall_ms(), 0)

    def update_config(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 25: changes all given options or none. ``broker.conf`` stays as it is, so a restart undoes the
        change.
        """
        values = read_options(bytes(command.body))
        for key, value in values.items():
            if key in UNCHANGEABLE:
                _check_unchangeable(key, value)
            elif key not in REMOTE_KEYS:
                event(logger, logging.WARNING, "change of an option refused", key=key, peer=channel.remote_address)
                raise BrokerError(ResponseCode.NO_PERMISSION, _BLACK_LISTED if key in _BLACK_LIST else _NOT_CHANGED)
            elif key in ADMINISTRATORS_KEYS and not self._config.guarded:
                remark = f"only administrators may change {key}, and without access control there are none"
                raise BrokerError(ResponseCode.NO_PERMISSION, f"{remark}: set {key} in broker.conf")
            if any(character < " " for character in value):
                raise BrokerError(ResponseCode.INVALID_PARAMETER, f"{key}: the value must not have control characters")
        try:
            changed = change_options(
                self._config, {key: value for key, value in values.items() if key not in UNCHANGEABLE}
            )
        except ConfigError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        for key, (before, after) in changed.items():
            event(
                logger,
                logging.WARNING,
                "option changed by request",
                key=key,
                before=before,
                after=after,
                peer=channel.remote_address,
            )
        if changed:
            self._version = self._version.next(self._clock.wall_ms())
        return success(command)

    def config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 26: options of broker and store, sorted by key."""
        options = {**show_options(self._config), **show_options(self._store.config)}
        version = fastjson.dumps(self._version.to_dict()).decode()
        return command.answer(ResponseCode.SUCCESS, ext_fields={"version": version}, body=options_text(options))

    def runtime_info(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 28: runtime information."""
        return self._cold_reads.serve(lambda cold: success(command, None, KVTable(self._runtime_info(cold))))

    def ha_status(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 907: the slaves of this broker, and what each of them has; on a slave, its master."""
        return success(command, None, self._ha_status())

    def expire(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Requests 306 and 329: starts the removal of expired log segments with their queue and index entries."""
        event(logger, logging.INFO, "expiry asked for", code=command.code, peer=channel.remote_address)
        self._store.expire_now()
        return success(command)


def _check_unchangeable(key: str, value: str) -> None:
    only, reason = UNCHANGEABLE[key]
    if value.strip().lower() != only:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"{key} is {only} and cannot be changed: {reason}")


def read_options(body: bytes) -> dict[str, str]:
    """The options in the body of request 25.

    Raises:
        BrokerError: INVALID_PARAMETER: the body is not a properties text of Java, or is too long.
    """
    if len(body) > CONFIG_BYTES_MAX:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"at most {CONFIG_BYTES_MAX} bytes of options are allowed")
    try:
        return parse_properties(body.decode())
    except ValueError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"options: {error}") from None


def options_text(options: dict[str, str]) -> bytes:
    """The body of the response to request 26: ``key=value`` lines, sorted by key. The values are not escaped."""
    return "".join(f"{key}={value}\n" for key, value in sorted(options.items())).encode("utf-8", "surrogateescape")
