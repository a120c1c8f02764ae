"""The context of a listening port, whose refused handshakes leave the alert that tells the peer why.

OpenSSL makes the alert. The event loops, asyncio's and uvloop's, close the connection without sending it: after a
failed handshake they throw away what waits to be sent. So it is taken before, and travels with the error.
"""

from __future__ import annotations

import ssl

_ALERT = "alert_of_tls"


def alert_in(error: ssl.SSLError) -> bytes:
    """Returns the bytes to send to a peer whose handshake has ended with ``error``; empty if there is nothing to say,
    as to a peer that does not speak TLS.
    """
    alert: bytes = getattr(error, _ALERT, b"")
    return alert


class ServerHandshake(ssl.SSLObject):
    """One connection.

    Attributes:
        outgoing: what waits to be sent.
    """

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        """See ``ssl.SSLObject``. An error that ends the handshake has its alert."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            setattr(error, _ALERT, self.outgoing.read())
            raise


class ServerContext(ssl.SSLContext):
    """See ``ssl.SSLContext``."""

    sslobject_class = ServerHandshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """See ``ssl.SSLContext``."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, ServerHandshake)
        made.outgoing = outgoing
        return made
