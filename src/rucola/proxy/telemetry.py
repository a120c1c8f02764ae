"""The telemetry stream of a client: its settings, and commands of the server with their results.

A stream lives as long as its client. If a client opens another one, commands go to the newest.

Source: RocketMQ 5.3.3, ``ClientActivity``, ``GrpcClientChannel``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from rucola.errors import RucolaError
from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Conversation, StreamMethod
from rucola.grpc.status import GrpcError, StatusCode
from rucola.proxy import messages
from rucola.proxy.lite_members import checked_settings
from rucola.proxy.names import check_group, check_topic
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import decoded, ok, refusal_of, serialized
from rucola.proxy.settings import CLIENT_PROPERTIES_BYTES_MAX, CLIENT_PROPERTIES_MAX, set_lite, told
from rucola.remoting.fairness.steps import Steps
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.proxy.brokers import Brokers
    from rucola.proxy.lite_subscriptions import DoorSubscriptions
    from rucola.proxy.presence import Presence
    from rucola.proxy.sessions import ClientSession, Sessions

logger = logging.getLogger(__name__)

TOPICS_MAX: Final = 1024
"""Topics of one producer, or subscriptions of one consumer."""
SETTINGS_WAITING_MAX: Final = 16
"""Settings that one client may send before the first of them is answered."""
_ANSWER_S: Final = 5.0
_LEAVES_AT_ONCE: Final = 16
_PROPERTY_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
_PROPERTY_CHARACTERS_MAX = 256


class Telemetry:
    """The streams of all clients. Event loop only.

    Args:
        sessions: the clients.
        brokers: know the groups.
        presence: registers clients.
        lite: has the subscriptions to lite topics.
        body_bytes_max: largest body that producers may send.
    """

    def __init__(
        self,
        sessions: Sessions,
        brokers: Brokers,
        presence: Presence,
        lite: DoorSubscriptions,
        body_bytes_max: int,
    ) -> None:
        self._sessions, self._brokers, self._presence, self._lite = sessions, brokers, presence, lite
        self._body_bytes_max = body_bytes_max
        self._nonces = itertools.count(1)
        self._asked: dict[tuple[ClientSession, str], asyncio.Future[messages.TelemetryCommand]] = {}
        self._left: dict[ClientSession, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def method(self) -> StreamMethod:
        """Telemetry."""
        return StreamMethod(self._begin)

    async def ask(
        self, session: ClientSession, command: Callable[[str], messages.TelemetryCommand]
    ) -> messages.TelemetryCommand | None:
        """Sends a command to a client and waits for its result; None if none comes within 5 s, or there is no stream.

        Args:
            command: makes the command from the text that stands for it in the result.
        """
        stream = session.stream
        if stream is None or stream.is_over:
            return None
        nonce = f"{next(self._nonces)}"
        future: asyncio.Future[messages.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._asked[session, nonce] = future
        try:
            stream.send(serialized(command(nonce)))
            return await asyncio.wait_for(future, _ANSWER_S)
        except TimeoutError:
            return None
        finally:
            del self._asked[session, nonce]

    def say(self, session: ClientSession, command: messages.TelemetryCommand) -> bool:
        """Sends a command that has no result; returns whether the client has a stream."""
        stream = session.stream
        if stream is None or stream.is_over:
            return False
        stream.send(serialized(command))
        return True

    def reconnect(self) -> Steps[None]:
        """Tells all clients that this server ends."""
        for session in self._sessions:
            command = messages.ReconnectEndpointsCommand(nonce=f"{next(self._nonces)}")
            self.say(session, messages.TelemetryCommand(status=ok(), reconnect_endpoints_command=command))
            if session.stream is not None:
                session.stream.end()
            yield

    def lost(self, session: ClientSession) -> None:
        """Notes that the stream of a client is over, and that it has no other one."""
        session.set_stream(None)
        if not self._left:
            self._run(self._leave())
        self._left[session] = None

    async def _leave(self) -> None:
        """Has brokers forget clients, a few in each turn: all may lose their streams at once."""
        while True:
            for session in list(itertools.islice(self._left, _LEAVES_AT_ONCE)):
                del self._left[session]
                self._run(self._presence.leave(session))
            if not self._left:
                return
            await asyncio.sleep(0)

    def _begin(self, call: GrpcCall) -> Conversation:
        try:
            session = self._sessions.of(call)
        except RefusedError as error:
            _refuse(call, error)
            return _Refused()
        return _Stream(self, session, call)

    def take(self, stream: _Stream, command: messages.TelemetryCommand) -> None:
        """Handles a command of a client."""
        which = command.WhichOneof("command")
        if which == "settings":
            if stream.add(command.settings):
                self._run(self._take_all(stream))
        elif which in ("thread_stack_trace", "verify_message_result"):
            future = self._asked.get((stream.session, getattr(command, which).nonce))
            if future is not None and not future.done():
                future.set_result(command)

    async def _take_all(self, stream: _Stream) -> None:
        """Handles the settings of a stream one after another, as long as there are some."""
        while (settings := stream.next()) is not None:
            await self._take_settings(stream, settings)

    async def _take_settings(self, stream: _Stream, settings: messages.Settings) -> None:
        session, call = stream.session, stream.call
        try:
            self._check(session, settings)
            answer = await self._answer(settings)
            heartbeat = self._presence.heartbeat_of(session, settings)
            session.set_settings(settings, heartbeat)
            session.set_stream(call)
            await self._presence.register(session, settings, heartbeat)
            await self._lite.restore(session)
        except RucolaError as error:
            refusal = refusal_of(error)
            if refusal.code == messages.FORBIDDEN:
                _refuse(call, refusal)
                stream.over()
                return
            is_theirs = messages.BAD_REQUEST <= refusal.code < messages.INTERNAL_ERROR
            call.end(StatusCode.INVALID_ARGUMENT if is_theirs else StatusCode.INTERNAL, refusal.text)
            stream.over()
            return
        call.send(serialized(messages.TelemetryCommand(status=ok(), settings=answer)))

    async def _answer(self, settings: messages.Settings) -> messages.Settings:
        """The answer to a client's settings."""
        if not settings.HasField("subscription"):
            return told(settings, None, self._body_bytes_max)
        group = await self._brokers.group(settings.subscription.group.name)
        answer = told(settings, group, self._body_bytes_max)
        lite = checked_settings(settings, group)
        if lite is not None:
            set_lite(answer.subscription, lite, self._lite.config)
        return answer

    def _check(self, session: ClientSession, settings: messages.Settings) -> None:
        _check_properties(settings)
        if settings.HasField("publishing"):
            _check_number(len(settings.publishing.topics))
            for topic in settings.publishing.topics:
                check_topic(topic.name)
        elif settings.HasField("subscription"):
            subscription = settings.subscription
            _check_number(len(subscription.subscriptions))
            check_group(subscription.group.name)
            for entry in subscription.subscriptions:
                check_topic(entry.topic.name)
        else:
            raise RefusedError(messages.BAD_REQUEST, "the settings are neither for publishing nor for a subscription")
        self._presence.check_rights(session, settings)

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            event(logger, logging.ERROR, "settings of a client not handled", error)


class _Stream:
    """One telemetry stream; see ``Conversation``."""

    def __init__(self, telemetry: Telemetry, session: ClientSession, call: GrpcCall) -> None:
        self._telemetry = telemetry
        self.session, self.call = session, call
        self._settings: deque[messages.Settings] = deque()
        self._is_busy = False
        call.on_over = self.over

    def add(self, settings: messages.Settings) -> bool:
        """Adds settings to those that wait; returns whether somebody must begin to handle them.

        Raises:
            GrpcError: too many wait.
        """
        if len(self._settings) >= SETTINGS_WAITING_MAX:
            raise GrpcError(StatusCode.RESOURCE_EXHAUSTED, f"more than {SETTINGS_WAITING_MAX} settings wait")
        self._settings.append(settings)
        was_busy, self._is_busy = self._is_busy, True
        return not was_busy

    def next(self) -> messages.Settings | None:
        """The settings that are handled next; None if there are none, or nobody waits for the answer."""
        if self._settings and not self.call.is_over:
            return self._settings.popleft()
        self._is_busy = False
        return None

    def received(self, message: bytes) -> None:
        """Handles a command of the client."""
        self._telemetry.take(self, decoded(messages.TelemetryCommand, message))

    def finished(self) -> None:
        """The client ends the stream."""
        self.over()
        self.call.end()

    def over(self) -> None:
        """The stream takes no more commands."""
        if self.session.stream is self.call:
            self._telemetry.lost(self.session)


class _Refused:
    """A telemetry stream that was refused as it began: nobody who is unknown holds one. See ``Conversation``."""

    def received(self, _message: bytes) -> None:
        """Ignores what the client still sends."""

    def finished(self) -> None:
        """The call has ended before."""


def _refuse(call: GrpcCall, refusal: RefusedError) -> None:
    """Says in a command why a client is refused, and ends its stream without an error: clients log the status of a
    command. RocketMQ 5.3.3, ``GrpcMessagingApplication#telemetry``, does so for what its checks of accounts refuse.
    """
    call.send(serialized(messages.TelemetryCommand(status=refusal.status())))
    call.end()


def _check_number(count: int) -> None:
    if count > TOPICS_MAX:
        raise RefusedError(messages.BAD_REQUEST, f"the settings name {count} topics; allowed are {TOPICS_MAX}")


def _check_properties(settings: messages.Settings) -> None:
    properties = settings.client_properties
    size = 0
    for key, value in properties.items():
        size += len(key) + len(value.encode())
        if _PROPERTY_KEY.fullmatch(key) is None or len(value) > _PROPERTY_CHARACTERS_MAX:
            raise RefusedError(
                messages.INVALID_CLIENT_PROPERTIES,
                f"client property {key[:64]!a} is not allowed: a key has 1 to 64 of the characters a-z A-Z 0-9 _ . -"
                f" and begins with a letter, a value at most {_PROPERTY_CHARACTERS_MAX} characters",
            )
    if len(properties) > CLIENT_PROPERTIES_MAX or size > CLIENT_PROPERTIES_BYTES_MAX:
        raise RefusedError(
            messages.INVALID_CLIENT_PROPERTIES,
            f"there are {len(properties)} client properties of {size} bytes; allowed are {CLIENT_PROPERTIES_MAX} of "
            f"{CLIENT_PROPERTIES_BYTES_MAX}",
        )
