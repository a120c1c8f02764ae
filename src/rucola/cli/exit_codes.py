"""Exit codes of the commands, and the code for each error. They are stable, because scripts rely on them."""

from __future__ import annotations

from enum import IntEnum

from rucola.errors import (
    AddressInUseError,
    ConfigError,
    DiskError,
    ForeignEntryError,
    FormatError,
    RucolaError,
    StoreDamagedError,
    StoreLockedError,
    TaskFailedError,
    TopicsFailedError,
)


class ExitCode(IntEnum):
    """Result of a command for the shell."""

    CLEAN = 0
    """The command did its work, or a signal stopped the server."""
    FAILED = 1
    """The command failed; standard error says why."""
    USAGE = 2
    """The command line or the configuration is wrong. The message names key, value and what is allowed."""
    PORT_IN_USE = 3
    """Another process listens on the port."""
    STORE_LOCKED = 4
    """Another process uses the store directory."""
    STORE_DAMAGED = 5
    """The store is damaged, or holds something that is no file of a store. The message names it."""
    DISK = 6
    """The disk is full or fails."""
    INTERRUPTED = 130
    """Ctrl-C ended a tool before its work was complete. Servers end with 0."""


_BY_ERROR: tuple[tuple[type[RucolaError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (AddressInUseError, ExitCode.PORT_IN_USE),
    (StoreLockedError, ExitCode.STORE_LOCKED),
    (StoreDamagedError, ExitCode.STORE_DAMAGED),
    (FormatError, ExitCode.STORE_DAMAGED),
    (ForeignEntryError, ExitCode.STORE_DAMAGED),
    (DiskError, ExitCode.DISK),
)


class ProcessStartError(Exception):
    """One of several server processes ended before it served; it has written the reason to standard error."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


def exit_code(error: RucolaError) -> ExitCode:
    """The exit code for an error that ended a command. Of several failures, a code that all share counts."""
    if isinstance(error, TopicsFailedError):
        codes = {exit_code(one) for one in error.failures.values()}
        return codes.pop() if len(codes) == 1 else ExitCode.FAILED
    raised = (isinstance(error, TaskFailedError) and error.kind) or type(error)
    return next((code for kind, code in _BY_ERROR if issubclass(raised, kind)), ExitCode.FAILED)
