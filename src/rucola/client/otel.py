"""OpenTelemetry: spans for the messages that a client sends and that an application consumes.

``traced(client)`` wraps the methods of a client and returns the client; other clients are not affected. The trace
context is stored in the message's properties: ``traceparent`` and all other properties that the process's propagators
write. Any broker passes these properties on. Names and attributes of spans follow OpenTelemetry's semantic conventions
for messaging. Needs the extra ``otel``: ``pip install
'rucola-mq[otel]'``, or ``'.[otel]'`` in a checkout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar

from opentelemetry import propagate, trace

from rucola.client.listener import ConsumeResultSuspend, Listener, completed, is_pending, shown
from rucola.client.send_result import SendResult
from rucola.common.message import Message, MessageExt
from rucola.errors import UnreadableBodyError

C = TypeVar("C")

_ONE = ("send", "send_oneway", "send_message_in_transaction")
_MANY = ("send_many", "send_batch")


def traced(client: C, group: str = "", tracer_provider: trace.TracerProvider | None = None) -> C:
    """Makes a client create spans. Must be called before the client is started and before its listener is registered.

    A producer creates a span for each call of ``send``, ``submit``, ``send_oneway``, ``send_many``, ``send_batch`` and
    ``send_message_in_transaction``. A push or lite consumer creates a span for each call of its listener.
    Applications that consume without a listener create the spans with ``processing``.

    Args:
        client: a client of ``rucola`` or ``rucola.sync``.
        group: group to add to every span; empty for none.
        tracer_provider: provider of the tracer; None for the global one.

    Returns:
        ``client``.
    """
    spans = _Spans(trace.get_tracer("rucola", tracer_provider=tracer_provider), group)
    for name in (*_ONE, *_MANY):
        _wrap(client, name, spans.sending)
    _wrap(client, "submit", spans.submitting)
    _wrap(client, "register_message_listener", spans.registering)
    return client


@contextmanager
def processing(
    message: MessageExt, group: str = "", tracer_provider: trace.TracerProvider | None = None
) -> Iterator[trace.Span]:
    """Creates a span for one message, in an application that consumes without a listener. Put
    ``with processing(message):`` around the code that processes the message.

    The span belongs to the trace of the message's sender. An exception marks the span as failed and is raised again.
    """
    spans = _Spans(trace.get_tracer("rucola", tracer_provider=tracer_provider), group)
    with spans.process([message]) as span:
        yield span


class _Spans:
    """Creates the spans of one client."""

    def __init__(self, tracer: trace.Tracer, group: str) -> None:
        self._tracer = tracer
        self._group = group

    # of producers

    def sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``send``, which takes one or several messages, in a span."""
        if inspect.iscoroutinefunction(send):

            @wraps(send)
            async def send_async(messages: Message | Iterable[Message], *args: Any, **options: Any) -> Any:
                messages = _listed(messages)
                with self._send_span(messages) as span:
                    return _told(span, await send(messages, *args, **options))

            return send_async

        @wraps(send)
        def send_sync(messages: Message | Iterable[Message], *args: Any, **options: Any) -> Any:
            messages = _listed(messages)
            with self._send_span(messages) as span:
                return _told(span, send(messages, *args, **options))

        return send_sync

    def submitting(self, submit: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``submit`` in a span, which ends when the future that ``submit`` returns is done."""

        @wraps(submit)
        def submit_traced(message: Message, *args: Any, **options: Any) -> Any:
            span = self._start(f"send {message.topic}", trace.SpanKind.PRODUCER, [message], "send")
            with trace.use_span(span, end_on_exit=False):
                propagate.inject(message.properties)
                try:
                    future = submit(message, *args, **options)
                except BaseException as error:
                    _failed(span, error)
                    span.end()
                    raise
            future.add_done_callback(lambda done: _end(span, done))
            return future

        return submit_traced

    @contextmanager
    def _send_span(self, messages: Message | Sequence[Message]) -> Iterator[trace.Span]:
        batch = [messages] if isinstance(messages, Message) else messages
        topics = {message.topic for message in batch}
        name = f"send {topics.pop()}" if len(topics) == 1 else "send"
        span = self._start(name, trace.SpanKind.PRODUCER, batch, "send")
        with trace.use_span(span, end_on_exit=True):
            for message in batch:
                propagate.inject(message.properties)
            yield span

    # of consumers

    def registering(self, register: Callable[..., None]) -> Callable[..., None]:
        """Wraps ``register_message_listener`` so that the listener is called in a span."""

        @wraps(register)
        def register_traced(listener: Callable[..., Any], *, batch: bool = False) -> None:
            register(self._listening(listener, batch), **({"batch": True} if batch else {}))  # lite consumers have none

        return register_traced

    def _listening(self, function: Callable[..., Any], batch: bool) -> Callable[..., Any]:
        listener = Listener(function, batch)

        async def listen_async(messages: Any, *context: Any) -> Any:
            with self.process(messages if batch else [messages]) as span:
                return _judged(span, listener, await completed(function(messages, *context)))

        async def wait(processed: list[MessageExt], pending: Any) -> Any:
            with self.process(processed) as span:
                return _judged(span, listener, await completed(pending))

        def listen(messages: Any, *context: Any) -> Any:
            processed = list(messages) if batch else [messages]  # the listener may empty its list
            with self.process(processed) as span:
                answer = function(messages, *context)
                if not is_pending(answer):
                    return _judged(span, listener, answer)
            return wait(processed, answer)  # in a span of its own, because it runs on the event loop

        return listen_async if listener.on_loop else listen

    @contextmanager
    def process(self, messages: Sequence[MessageExt]) -> Iterator[trace.Span]:
        """Creates a span in the trace of the first message, with links to the other messages."""
        parent = propagate.extract(messages[0].properties)
        contexts = [propagate.extract(message.properties) for message in messages[1:]]
        links = [trace.Link(trace.get_current_span(context).get_span_context()) for context in contexts]
        name = f"process {messages[0].topic}"
        span = self._start(name, trace.SpanKind.CONSUMER, messages, "process", context=parent, links=links)
        with trace.use_span(span, end_on_exit=True):
            yield span

    def _start(
        self, name: str, kind: trace.SpanKind, messages: Sequence[Message], operation: str, **options: Any
    ) -> trace.Span:
        span = self._tracer.start_span(name, kind=kind, **options)
        if span.is_recording():
            span.set_attributes(_attributes(messages, operation, self._group))
        return span


def _attributes(messages: Sequence[Message], operation: str, group: str) -> dict[str, str | int | list[str]]:
    found: dict[str, str | int | list[str]] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if group:
        found["messaging.consumer.group.name" if operation == "process" else "messaging.rocketmq.client_group"] = group
    topics = {message.topic for message in messages}
    if len(topics) == 1:
        found["messaging.destination.name"] = topics.pop()
    if len(messages) != 1:
        found["messaging.batch.message_count"] = len(messages)
        return found
    (message,) = messages
    with suppress(UnreadableBodyError):
        found["messaging.message.body.size"] = len(message.body)
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys.split()
    if isinstance(message, MessageExt):
        found["messaging.message.id"] = message.msg_id
        found["messaging.destination.partition.id"] = str(message.queue_id)
    return found


def _listed(messages: Message | Iterable[Message]) -> Message | list[Message]:
    return messages if isinstance(messages, Message) else list(messages)


def _told(span: trace.Span, result: Any) -> Any:
    """Adds the message id and the queue id of a sent message to the span."""
    if isinstance(result, SendResult) and span.is_recording():
        span.set_attribute("messaging.message.id", result.msg_id)
        span.set_attribute("messaging.destination.partition.id", str(result.message_queue.queue_id))
    return result


def _judged(span: trace.Span, listener: Listener, answer: Any) -> Any:
    """Marks the span as failed if ``answer``, the listener's result, means that the call has failed."""
    if type(answer) is not ConsumeResultSuspend and not listener.is_good(answer):
        span.set_status(trace.StatusCode.ERROR, shown(answer))
    return answer


def _failed(span: trace.Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")


def _end(span: trace.Span, done: Any) -> None:
    if done.cancelled():
        span.set_status(trace.StatusCode.ERROR, "cancelled")
    elif done.exception() is not None:
        _failed(span, done.exception())
    else:
        _told(span, done.result())
    span.end()


def _wrap(client: object, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = getattr(client, name, None)
    if method is not None:
        setattr(client, name, wrapper(method))
