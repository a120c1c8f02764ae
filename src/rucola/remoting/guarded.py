"""Serves requests of which some are open to everybody and the others only to servers of the cluster and administrators:
what name servers and controllers have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from rucola.common.columns import ROW_WIDTH
from rucola.common.hosts import is_loopback
from rucola.common.kernel_columns import FRAME_CODE, FRAME_FLAG
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.signature import TOO_EARLY
from rucola.remoting.channel import Channel
from rucola.remoting.processors import ProcessorTable

Judge = Callable[[Channel, RemotingCommand], str]
"""Returns why a request that is not open to everybody is refused; an empty text allows it."""
_TRUSTED = "guarded-trusted"


class GuardedHandler:
    """A handler of frames that asks a judge.

    Args:
        processors: serve the requests that are allowed.
        open_codes: codes of the requests that everybody may send. The judge decides about all others, also about those
            that nobody knows.
        judge: decides.
        monotonic: the time in seconds.
    """

    def __init__(
        self, processors: ProcessorTable, open_codes: Set[int], judge: Judge, monotonic: Callable[[], float]
    ) -> None:
        self._processors, self._open_codes, self._judge = processors, open_codes, judge
        self._monotonic = monotonic

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Serves all frames that one read delivered."""
        self.serve_rows(channel, batch, 0)

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Serves the frames from row ``first`` on, as many as fit into one iteration of the event loop."""
        table = batch.table
        for row in range(first, batch.count):
            if (row > first or channel.costly) and channel.note_request():
                channel.postpone(batch, row)
                return
            base = row * ROW_WIDTH
            if table[base + FRAME_FLAG] & FLAG_RESPONSE:
                continue
            command = batch.command(row)
            refusal = "" if table[base + FRAME_CODE] in self._open_codes else self._judge(channel, command)
            if not refusal:
                began_s = self._monotonic()
                self._processors.process(channel, command)
                channel.note_cost(self._monotonic() - began_s)
            elif not command.is_oneway:
                code = ResponseCode.SYSTEM_BUSY if refusal.startswith(TOO_EARLY) else ResponseCode.NO_PERMISSION
                channel.send(command.answer(code, refusal).encode())


def judge_by_place(insecure: bool, what: str) -> Judge:
    """A judge for a server without accounts: trusts this machine, and peers with a certificate.

    Args:
        insecure: trust everybody.
        what: the server, for example ``the name server``.
    """
    refusal = f"only this machine or a peer with a certificate may change {what}'s state"

    def judge(channel: Channel, _command: RemotingCommand) -> str:
        return "" if insecure or _trusted(channel) else refusal

    return judge


def _trusted(channel: Channel) -> bool:
    trusted = channel.attributes.get(_TRUSTED)
    if trusted is None:
        trusted = channel.verified or is_loopback(channel.remote_address)
        channel.attributes[_TRUSTED] = trusted
    return bool(trusted)
