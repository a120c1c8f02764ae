"""Shows and changes the options of a name server or controller by request (RocketMQ 5.3.3, ``DefaultRequestProcessor``
and ``ControllerRequestProcessor``).

Every broker may send such a request, so it can change only the options that the server names.
"""

from __future__ import annotations

import logging
from typing import Any

from rucola.common.java import parse_properties
from rucola.common.options import change_options, show_options
from rucola.errors import BrokerError, ConfigError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.channel import Channel
from rucola.remoting.processors import ProcessorTable
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""The keys that RocketMQ refuses to change, with the remark ``_BLACK_LISTED``."""
_BLACK_LISTED = "Can not update config in black list."
CONFIG_BYTES_MAX = 64 * 1024


class ConfigProcessor:
    """Shows and changes options.

    Args:
        config: a dataclass of options. The server reads those in ``remote_keys`` at each use, so a change applies
            immediately.
        remote_keys: keys of the options that a request may change.
    """

    def __init__(self, config: Any, remote_keys: frozenset[str]) -> None:
        self._config, self._remote_keys = config, remote_keys

    def register_to(self, table: ProcessorTable, update: RequestCode, get: RequestCode) -> None:
        """Registers both processors in ``table``, for the two codes."""
        table.register(update, self.update_config)
        table.register(get, self.config)

    def update_config(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Changes all given options or none; the change lasts until the server restarts."""
        if len(command.body) > CONFIG_BYTES_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"at most {CONFIG_BYTES_MAX} bytes of options are allowed"
            )
        try:
            values = parse_properties(bytes(command.body).decode())
            if values.keys() - self._remote_keys:
                keys = ",".join(sorted(values.keys() - self._remote_keys))
                event(logger, logging.WARNING, "change of options refused", keys=keys, peer=channel.remote_address)
                listed = values.keys() & _BLACK_LIST
                raise BrokerError(ResponseCode.NO_PERMISSION, _BLACK_LISTED if listed else self._not_changed())
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
        """All options, sorted by key."""
        lines = [f"{key}={value}\n" for key, value in sorted(show_options(self._config).items())]
        return command.answer(ResponseCode.SUCCESS, body="".join(lines).encode("utf-8", "surrogateescape"))

    def _not_changed(self) -> str:
        return f"{_BLACK_LISTED} A request can change only {', '.join(sorted(self._remote_keys))}."
