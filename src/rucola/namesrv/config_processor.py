"""Shows and changes the name server's options by request (RocketMQ 5.3.3, ``DefaultRequestProcessor``; requests 318 and
319).

Every broker may send request 318, so the request can change only the options in ``REMOTE_KEYS``.
"""

from __future__ import annotations

import logging
from typing import Any

from rucola.common.java import parse_properties
from rucola.common.options import change_options, show_options
from rucola.errors import BrokerError, ConfigError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

REMOTE_KEYS = frozenset({"scanNotActiveBrokerInterval"})
"""Options that a request may change. The name server reads them at each use, so a change applies immediately."""
_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""The keys that RocketMQ refuses to change, with the remark ``_BLACK_LISTED``."""
_BLACK_LISTED = "Can not update config in black list."
_NOT_CHANGED = f"{_BLACK_LISTED} A request can change only {', '.join(sorted(REMOTE_KEYS))}."
CONFIG_BYTES_MAX = 64 * 1024


class NamesrvConfigProcessor:
    """Shows and changes options. ``config``: a ``NamesrvConfig``."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def register_to(self, table: ProcessorTable) -> None:
        """Registers both processors in ``table``."""
        table.register(RequestCode.UPDATE_NAMESRV_CONFIG, self.update_config)
        table.register(RequestCode.GET_NAMESRV_CONFIG, self.config)

    def update_config(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 318: changes all given options or none; the change lasts until the name server restarts."""
        if len(command.body) > CONFIG_BYTES_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"at most {CONFIG_BYTES_MAX} bytes of options are allowed"
            )
        try:
            values = parse_properties(bytes(command.body).decode())
            if values.keys() - REMOTE_KEYS:
                keys = ",".join(sorted(values.keys() - REMOTE_KEYS))
                event(logger, logging.WARNING, "change of options refused", keys=keys, peer=channel.remote_address)
                listed = values.keys() & _BLACK_LIST
                raise BrokerError(ResponseCode.NO_PERMISSION, _BLACK_LISTED if listed else _NOT_CHANGED)
            changed = change_options(self._config, values)
        except (ConfigError, ValueError) as error:
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
        return command.answer(ResponseCode.SUCCESS)

    def config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 319: all options, sorted by key."""
        lines = [f"{key}={value}\n" for key, value in sorted(show_options(self._config).items())]
        return command.answer(ResponseCode.SUCCESS, body="".join(lines).encode("utf-8", "surrogateescape"))
