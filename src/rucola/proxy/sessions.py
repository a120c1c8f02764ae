"""The clients of the door. A client is known by its id; what the door knows of it, it can learn again.

Settings come with the client's telemetry stream, and again every few minutes. A client that was silent for two minutes
is forgotten, and its brokers forget it, too.

There may be other doors, which know nothing of this one. A client whose connection has ended may be there until it is
seen again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rucola.grpc.call import GrpcCall, GrpcPeer
from rucola.protocol.codes import LanguageCode
from rucola.proxy import messages
from rucola.proxy.refusal import RefusedError

if TYPE_CHECKING:
    from rucola.protocol.bodies.heartbeat import HeartbeatData
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import DoorLink

WANTED: Final = (
    b"x-mq-client-id",
    b"x-mq-client-version",
    b"x-mq-language",
    b"authorization",
    b"x-mq-date-time",
    b"x-mq-session-token",
)
"""Fields of requests that the door reads; ``GrpcCall.metadata`` has them in this order. Without accounts, it has only
those before the signature.
"""
UNSIGNED: Final = WANTED[:3]
_CLIENT_ID, VERSION, LANGUAGE, AUTHORIZATION, DATE_TIME, SESSION_TOKEN = range(len(WANTED))
SILENCE_S: Final = 120.0
SESSIONS_MAX: Final = 16_384
"""Above this number, a new client takes the place of the one that was silent for longest, if that is
``CROWDED_SILENCE_S``; clients send a heartbeat every 10 s.
"""
CROWDED_SILENCE_S: Final = 30.0
ELSEWHERE_S: Final = 5.0
"""A client that was away for so long may have called another door meanwhile; one that only connects again is faster."""
CLIENT_ID_BYTES_MAX: Final = 255
_FORGOTTEN_AT_ONCE = 64
_Key = tuple[bytes, str, str]
"""Client id, account and, of an account, the host: its rights may depend on where it comes from."""


class ClientSession:
    """One client.

    Attributes:
        client_id: the id that it gives itself.
        account: the account that it has proved to be; empty if access control is off.
        host: its address at its latest request, as bytes, for messages that do not name their host.
        language, version: what it says of itself.
        settings: its settings as it sent them; None before it did.
        heartbeat: its heartbeat for brokers, with the settings.
        stream: its telemetry stream; None if it has none.
        links: its connections to brokers, by broker name.
        seen_s: time of its last request.
        here_since_s: since when all its calls have come to this door, as far as that can be known.
        key: by what it is known.
        peer: whence its latest request came.
    """

    __slots__ = (
        "account",
        "client_id",
        "heartbeat",
        "here_since_s",
        "host",
        "key",
        "language",
        "links",
        "peer",
        "seen_s",
        "settings",
        "stream",
        "version",
    )

    def __init__(self, key: _Key, call: GrpcCall) -> None:
        self.key, self.client_id, self.account = key, key[0].decode(), key[1]
        self.peer = call.peer
        self.host = call.peer.address.encode()
        self.language = _text(call.metadata[LANGUAGE])
        self.version = _text(call.metadata[VERSION])
        self.settings: messages.Settings | None = None
        self.heartbeat: HeartbeatData | None = None
        self.stream: GrpcCall | None = None
        self.links: dict[str, DoorLink] = {}
        self.seen_s = self.here_since_s = 0.0

    @property
    def address(self) -> str:
        """Its address at its latest request, ``host:port``."""
        return self.peer.address

    @property
    def secure(self) -> bool:
        """Whether its latest request came by TLS."""
        return self.peer.secure

    @property
    def is_away(self) -> bool:
        """Whether it has no connection, so that its next request may reach another door."""
        return self.peer.ended_s is not None

    def move(self, peer: GrpcPeer, now_s: float) -> None:
        """Notes that its requests come by another connection."""
        ended_s = self.peer.ended_s
        if ended_s is not None and now_s > ended_s + ELSEWHERE_S:
            self.here_since_s = now_s
        self.peer, self.host = peer, peer.address.encode()

    @property
    def language_code(self) -> LanguageCode:
        """Its language, as brokers know it."""
        if self.language == "GOLANG":
            return LanguageCode.GO
        return LanguageCode.__members__.get(self.language, LanguageCode.OTHER)

    @property
    def group(self) -> str:
        """The consumer group; empty for a producer, and before the settings are known."""
        settings = self.settings
        if settings is None or not settings.HasField("subscription"):
            return ""
        return settings.subscription.group.name

    def set_settings(self, settings: messages.Settings, heartbeat: HeartbeatData) -> None:
        """Notes what the client has sent, and the heartbeat that follows from it."""
        self.settings, self.heartbeat = settings, heartbeat

    def set_stream(self, stream: GrpcCall | None) -> None:
        """Notes where the client takes commands."""
        self.stream = stream

    def close(self) -> None:
        """Ends the connections to brokers."""
        links, self.links = self.links, {}
        for link in links.values():
            link.close()


class Sessions:
    """All clients. Event loop only.

    Args:
        access: says who sent a request.
        monotonic: the clock, in seconds.
        ended: called with each client that is forgotten, and whether it has said itself that it ends; closes its
            connections.
    """

    def __init__(
        self, access: DoorAccess, monotonic: Callable[[], float], ended: Callable[[ClientSession, bool], None]
    ) -> None:
        self._access = access
        self._monotonic = monotonic
        self._ended = ended
        self._sessions: OrderedDict[_Key, ClientSession] = OrderedDict()  # the longest silent one is first

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, call: GrpcCall) -> ClientSession:
        """The client that makes a call.

        Raises:
            RefusedError: the request names no client, its signature is not that of an account, or there are too many
                clients.
        """
        client_id = call.metadata[_CLIENT_ID]
        if not client_id or not client_id.strip():
            raise RefusedError(messages.CLIENT_ID_REQUIRED, "the request has no x-mq-client-id")
        account = self._access.account_of(call)
        key = client_id, account, call.peer.address.rpartition(":")[0] if account else ""
        session = self._sessions.get(key)
        if session is None:
            session = self._new(key, call)
            self._make_room()
            self._sessions[key] = session
        else:
            self._sessions.move_to_end(key)
        session.seen_s = self._monotonic()
        if session.peer is not call.peer:
            session.move(call.peer, session.seen_s)
        return session

    def _make_room(self) -> None:
        if len(self._sessions) < SESSIONS_MAX:
            return
        silent = next(iter(self._sessions.values()))
        if silent.seen_s > self._monotonic() - CROWDED_SILENCE_S:
            raise RefusedError(messages.TOO_MANY_REQUESTS, f"there are more than {SESSIONS_MAX} clients")
        self.forget(silent)

    def forget(self, session: ClientSession, has_said: bool = False) -> None:
        """Forgets a client, which has said that it ends or was silent for too long."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self._ended(session, has_said)

    def forget_silent(self) -> bool:
        """Forgets clients that were silent for too long, a few at a time. Returns whether there may be more."""
        limit_s = self._monotonic() - SILENCE_S
        for _ in range(_FORGOTTEN_AT_ONCE):
            session = next(iter(self._sessions.values()), None)
            if session is None or session.seen_s > limit_s:
                return False
            self.forget(session)
        return True

    async def close(self) -> None:
        """Forgets all, a few in each turn of the event loop."""
        for count, session in enumerate(self, 1):
            self.forget(session)
            if count % _FORGOTTEN_AT_ONCE == 0:
                await asyncio.sleep(0)

    @staticmethod
    def _new(key: _Key, call: GrpcCall) -> ClientSession:
        client_id = key[0]
        if len(client_id) > CLIENT_ID_BYTES_MAX or not client_id.isascii():
            raise RefusedError(
                messages.CLIENT_ID_REQUIRED, f"x-mq-client-id must be ASCII of at most {CLIENT_ID_BYTES_MAX} bytes"
            )
        return ClientSession(key, call)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
