"""Exit codes of the commands that serve (stable: scripts rely on them) and which error ends with which."""

from __future__ import annotations

from enum import IntEnum

from rucola.errors import (
    AddressInUseError,
    ConfigError,
    DiskError,
    FormatError,
    RucolaError,
    StoreDamagedError,
    StoreLockedError,
)


class ExitCode(IntEnum):
    """What a command tells the shell."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    PORT_IN_USE = 3
    STORE_LOCKED = 4
    STORE_DAMAGED = 5
    DISK = 6


_BY_ERROR: tuple[tuple[type[RucolaError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (AddressInUseError, ExitCode.PORT_IN_USE),
    (StoreLockedError, ExitCode.STORE_LOCKED),
    (StoreDamagedError, ExitCode.STORE_DAMAGED),
    (FormatError, ExitCode.STORE_DAMAGED),
    (DiskError, ExitCode.DISK),
)


class BrokerStartError(Exception):
    """A broker process of several ended before it served; it has said why on standard error."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


def exit_code(error: RucolaError) -> ExitCode:
    """The exit code for an error that ended a command."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.FAILED)
