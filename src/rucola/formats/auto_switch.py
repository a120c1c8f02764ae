"""The stream between a slave and a master behind a controller (RocketMQ 5.3.3, ``AutoSwitchHAClient``,
``AutoSwitchHAConnection``).

Each frame begins with the state of its sender: ``HANDSHAKE`` or ``TRANSFER``. The slave sends a handshake, which the
master answers with its epochs: which master wrote the log from which offset on. Then the slave reports how far it has
the log, and the master sends transfers: a header, then as many bytes of the log as it says. A transfer without bytes is
a heartbeat. A frame has bytes of one epoch only, whose number and start it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rucola.errors import FormatError
from rucola.formats.ha import TRANSFER_BYTES_MAX
from rucola.formats.layout import Field, Layout

HANDSHAKE: Final = 1
TRANSFER: Final = 2
STATE_BYTES: Final = 4
"""Number of bytes of the state, with which each frame begins."""

AUTO_SWITCH_HELLO: Final = Layout(
    "handshake of a slave",
    16,
    Field("state", "i", "1."),
    Field("from_last_file", "h", "1: a slave without a log begins at the newest segment instead of the oldest."),
    Field("is_learner", "h", "1: the slave never becomes a member of the set in sync."),
    Field("broker_id", "q", "Number that the controller gave to the slave."),
)
AUTO_SWITCH_REPORT: Final = Layout(
    "report of a slave behind a controller",
    12,
    Field("state", "i", "2."),
    Field("max_offset", "q", "Physical offset up to which the slave has the log; the first report asks for the rest."),
)
AUTO_SWITCH_ANSWER: Final = Layout(
    "handshake of a master",
    20,
    Field("state", "i", "1."),
    Field("body_bytes", "i", "Number of bytes that follow: 12 for each epoch."),
    Field("max_offset", "q", "Physical offset of the end of the master's log."),
    Field("last_epoch", "i", "Number of the newest epoch; -1 if there is none."),
)
EPOCH_ENTRY: Final = Layout(
    "epoch in a handshake",
    12,
    Field("epoch", "i", "Number of the epoch."),
    Field("start_offset", "q", "Physical offset from which on its master wrote the log."),
)
AUTO_SWITCH_TRANSFER: Final = Layout(
    "header of a transfer behind a controller",
    36,
    Field("state", "i", "2."),
    Field("body_bytes", "i", "Number of bytes of the log that follow this header; 0 in a heartbeat."),
    Field("physical_offset", "q", "Physical offset of the first byte; -1 if the master does not know yet."),
    Field("epoch", "i", "Number of the epoch of these bytes."),
    Field("epoch_start", "q", "Physical offset at which this epoch begins."),
    Field("confirm_offset", "q", "Physical offset up to which all members of the set in sync have the log."),
)
EPOCHS_MAX: Final = 1000
"""Largest number of epochs in a handshake: a master of RocketMQ has room for no more."""


class EpochEntry(NamedTuple):
    """From ``start_offset`` on, the master of ``epoch`` wrote the log."""

    epoch: int
    start_offset: int


class Hello(NamedTuple):
    """A decoded ``AUTO_SWITCH_HELLO``."""

    broker_id: int
    from_last_file: bool = False
    is_learner: bool = False


class Answer(NamedTuple):
    """A decoded ``AUTO_SWITCH_ANSWER``, without its epochs."""

    body_bytes: int
    max_offset: int
    last_epoch: int


class EpochTransfer(NamedTuple):
    """A decoded ``AUTO_SWITCH_TRANSFER``."""

    body_bytes: int
    physical_offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int


def encode_hello(hello: Hello) -> bytes:
    """Returns the handshake of a slave."""
    return AUTO_SWITCH_HELLO.pack(HANDSHAKE, hello.from_last_file, hello.is_learner, hello.broker_id)


def decode_hello(frame: bytes | bytearray | memoryview) -> Hello:
    """Decodes the handshake of a slave. As in RocketMQ, flags other than 1 count as 0.

    Args:
        frame: at least ``AUTO_SWITCH_HELLO.size`` bytes, the first four of which are ``HANDSHAKE``.
    """
    _, from_last_file, is_learner, broker_id = AUTO_SWITCH_HELLO.unpack(frame)
    return Hello(broker_id, from_last_file == 1, is_learner == 1)


def encode_epoch_report(max_offset: int) -> bytes:
    """Returns a report of a slave: the physical offset up to which it has the log."""
    return AUTO_SWITCH_REPORT.pack(TRANSFER, max_offset)


def encode_answer(max_offset: int, epochs: Sequence[EpochEntry]) -> bytes:
    """Returns the handshake of a master, with at most the newest ``EPOCHS_MAX`` epochs.

    Args:
        max_offset: physical offset of the end of the log.
        epochs: oldest first.
    """
    sent = epochs[-EPOCHS_MAX:]
    last_epoch = sent[-1].epoch if sent else -1
    body = b"".join(EPOCH_ENTRY.pack(*entry) for entry in sent)
    return AUTO_SWITCH_ANSWER.pack(HANDSHAKE, len(body), max_offset, last_epoch) + body


def decode_answer(header: bytes | bytearray | memoryview) -> Answer:
    """Decodes the header of a master's handshake.

    Args:
        header: at least ``AUTO_SWITCH_ANSWER.size`` bytes.

    Raises:
        FormatError: it is none, the end of the log is below 0, or the epochs are too many or no whole ones.
    """
    state, body_bytes, max_offset, last_epoch = AUTO_SWITCH_ANSWER.unpack(header)
    _check_state(AUTO_SWITCH_ANSWER, state, HANDSHAKE)
    most = EPOCHS_MAX * EPOCH_ENTRY.size
    if not 0 <= body_bytes <= most or body_bytes % EPOCH_ENTRY.size:
        expected = f"0 to {most} bytes, a multiple of {EPOCH_ENTRY.size}"
        raise FormatError(AUTO_SWITCH_ANSWER.what, AUTO_SWITCH_ANSWER.position("body_bytes"), expected, str(body_bytes))
    _check_offset(AUTO_SWITCH_ANSWER, "max_offset", max_offset, 0)
    return Answer(body_bytes, max_offset, last_epoch)


def decode_epochs(body: bytes | bytearray | memoryview) -> tuple[EpochEntry, ...]:
    """Decodes the epochs in a master's handshake.

    Raises:
        FormatError: they are not in order: an epoch has no larger number, or begins before the one before it.
    """
    entries = tuple(EpochEntry(*EPOCH_ENTRY.unpack(body, at)) for at in range(0, len(body), EPOCH_ENTRY.size))
    wrong = first_disorder(entries)
    if wrong >= 0:
        raise FormatError(
            EPOCH_ENTRY.what,
            AUTO_SWITCH_ANSWER.size + wrong * EPOCH_ENTRY.size,
            "epochs and starts of 0 or more, in ascending order",
            "{}-{}".format(*entries[wrong]),
        )
    return entries


def first_disorder(entries: Sequence[EpochEntry]) -> int:
    """Returns the index of the first entry that cannot follow those before it; -1 if there is none.

    Two entries may begin at the same offset: RocketMQ lists so an epoch in which nothing was written.
    """
    before = EpochEntry(-1, 0)
    for index, entry in enumerate(entries):
        if entry.epoch <= before.epoch or entry.start_offset < before.start_offset:
            return index
        before = entry
    return -1


def encode_transfer(transfer: EpochTransfer) -> bytes:
    """Returns the header of a transfer."""
    return AUTO_SWITCH_TRANSFER.pack(TRANSFER, *transfer)


def decode_transfer(header: bytes | bytearray | memoryview) -> EpochTransfer:
    """Decodes the header of a transfer.

    Args:
        header: at least ``AUTO_SWITCH_TRANSFER.size`` bytes.

    Raises:
        FormatError: it is none, the number of bytes is below 0 or too large for a slave of RocketMQ, or an offset or
            the epoch is below what a master sends.
    """
    state, *fields = AUTO_SWITCH_TRANSFER.unpack(header)
    _check_state(AUTO_SWITCH_TRANSFER, state, TRANSFER)
    transfer = EpochTransfer(*fields)
    most = TRANSFER_BYTES_MAX - AUTO_SWITCH_TRANSFER.size
    if not 0 <= transfer.body_bytes <= most:
        position = AUTO_SWITCH_TRANSFER.position("body_bytes")
        raise FormatError(AUTO_SWITCH_TRANSFER.what, position, f"0 to {most} bytes", str(transfer.body_bytes))
    _check_offset(AUTO_SWITCH_TRANSFER, "physical_offset", transfer.physical_offset, 0 if transfer.body_bytes else -1)
    _check_offset(AUTO_SWITCH_TRANSFER, "epoch", transfer.epoch, 0 if transfer.body_bytes else -1)
    _check_offset(AUTO_SWITCH_TRANSFER, "epoch_start", transfer.epoch_start, 0 if transfer.body_bytes else -1)
    _check_offset(AUTO_SWITCH_TRANSFER, "confirm_offset", transfer.confirm_offset, -1)
    return transfer


def _check_state(layout: Layout, state: int, expected: int) -> None:
    if state != expected:
        raise FormatError(layout.what, 0, f"state {expected}", str(state))


def _check_offset(layout: Layout, field: str, value: int, least: int) -> None:
    if value < least:
        raise FormatError(layout.what, layout.position(field), f"{least} or more", str(value))
