"""What a connection of a server needs from the server and from its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rucola.errors import FormatError
from rucola.protocol.frame import FrameBatch
from rucola.remoting.fairness.linger import Linger
from rucola.remoting.fairness.postponed_reads import PostponedReads
from rucola.remoting.fairness.turn import Turn
from rucola.remoting.server_options import ServerOptions

if TYPE_CHECKING:
    from rucola.remoting.channel import Channel
    from rucola.remoting.outbound import Outbound


class FramesHandler(Protocol):
    """The handler of a server's frames."""

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Handles complete frames that one read delivered. ``batch`` is valid only during this call;
        ``channel.postpone`` copies the rows that it postpones.

        Skip rows with bit 0 of FLAG: they are responses to ``Channel.invoke``, which were already delivered.
        """

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Handles row ``first``, which was given to ``channel.postpone``, and the rows after it."""

    def channel_closed(self, channel: Channel) -> None:
        """Called once per channel, when ``channel`` has ended."""


class ChannelOwner(Protocol):
    """The server of a channel, as the channel sees it."""

    handler: FramesHandler
    options: ServerOptions
    turn: Turn
    linger: Linger
    postponed: PostponedReads

    def next_opaque(self) -> int:
        """Correlation id of the server's next request to a client."""

    def opened(self, channel: Channel) -> None:
        """Called when ``channel`` was accepted."""

    def closed(self, channel: Channel) -> None:
        """Called when ``channel`` has ended."""

    def refused(self, channel: Channel, error: FormatError) -> None:
        """Called when ``channel`` sent something that is not a frame."""

    def overrun(self, channel: Outbound) -> None:
        """Called when ``channel`` accepts its responses too slowly."""

    def grew(self, channel: Outbound, size: int) -> None:
        """Called when ``channel`` has ``size`` bytes of responses that were not sent yet."""

    def ask_for_room(self, channel: Channel, size: int, needed: int) -> bool:
        """True if more of a large frame may be read; ``size`` of its ``needed`` bytes have arrived. If False, the
        server notes ``ROOM_GIVEN`` later.
        """

    def large_frame_ended(self, channel: Channel) -> None:
        """Called when a large frame of ``channel`` is complete."""
