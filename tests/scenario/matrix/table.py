"""The matrix of promises: rows are ways to use a client, columns are events that may meet it.

Each row and each column has its promise in one word. The promise of a cell is the weaker of the two words, except for
the cells in ``CASES``, each with its reason. Everything else is generated from this module: the cells that run,
the words that the ledger checks, and the page ``docs/promises.md``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import rucola


class Word(Enum):
    """A promise about acknowledged messages."""

    ONCE = "once"
    ORDER = "in order"
    AGAIN = "again"
    SKIP = "may skip"
    NONE = "not applicable"


MEANING = {
    Word.ONCE: "the application finishes every message once; a message that it did not finish is given again",
    Word.ORDER: "once, and each queue's messages in the order of the queue: none before the earlier ones are finished",
    Word.AGAIN: "the application gets every message; it may get again what it has finished",
    Word.SKIP: "the application does not get some messages, for the reason stated; it gets every other one",
    Word.NONE: "the event cannot meet this use of the client",
}


class Use(Enum):
    """How an application gets messages from a consumer, or how it sends."""

    LISTENER = "listener"
    PLAIN_LISTENER = "plain listener"
    LOOP = "loop"
    POLL = "poll"
    RECEIVE = "receive"
    PULL = "pull"
    SEND = "send"


LISTENERS = (Use.LISTENER, Use.PLAIN_LISTENER)


@dataclass(frozen=True)
class Row:
    """One use of a client.

    Attributes:
        name: name on the command line.
        title: name in the documentation.
        client: name of the class.
        use: how the application uses it.
        word: the promise without an event.
        sync: whether the class is that of ``rucola.sync``.
        orderly: whether the push consumer is orderly.
        broadcasting: whether each consumer gets all messages.
        assigned: whether the application assigns the queues.
        wait_s: longest documented wait in seconds before this consumer gets a message that somebody else left.
        java: what Java's client does differently; empty if nothing.
    """

    name: str
    title: str
    client: str
    use: Use
    word: Word
    sync: bool = False
    orderly: bool = False
    broadcasting: bool = False
    assigned: bool = False
    wait_s: float = 40.0
    java: str = ""

    @property
    def is_producer(self) -> bool:
        """Whether the row is a way to send."""
        return self.use is Use.SEND

    @property
    def is_push(self) -> bool:
        """Whether the row is a push consumer."""
        return self.client == "PushConsumer"

    @property
    def is_lite(self) -> bool:
        """Whether the row is a lite pull consumer."""
        return self.client == "LitePullConsumer"

    @property
    def has_lite_topics(self) -> bool:
        """Whether the row reads lite topics. They stand in for the queues of the other rows."""
        return self.client == "LiteConsumer"

    @property
    def shares(self) -> bool:
        """Whether the members of a group share the queues."""
        return not (self.broadcasting or self.assigned or self.use is Use.PULL or self.is_producer)

    @property
    def base(self) -> str:
        """The name without the face."""
        return self.name.removeprefix("sync_")


@dataclass(frozen=True)
class Column:
    """One event.

    Attributes:
        name: name on the command line.
        title: name in the documentation.
        word: the promise to consumers.
        sends: the promise to producers.
        wait_s: the longest documented wait that the event causes, in seconds.
        variants: the event's forms; each is a run of its own.
        because: the reason of the word SKIP or NONE.
        java: what Java's client does differently; empty if nothing.
    """

    name: str
    title: str
    word: Word
    sends: Word = Word.NONE
    wait_s: float = 0.0
    variants: tuple[str, ...] = ("",)
    because: str = ""
    java: str = ""


_NO_LOOP = "Java has no such loop"
_ASYNC_ROWS = (
    Row("push_listener", "push, coroutine function as listener", "PushConsumer", Use.LISTENER, Word.ONCE,
        java="a listener that returns null has failed"),
    Row("push_plain_listener", "push, plain function as listener", "PushConsumer", Use.PLAIN_LISTENER, Word.ONCE,
        java="a listener that returns null has failed"),
    Row("push_loop", "push, loop", "PushConsumer", Use.LOOP, Word.ONCE, java=_NO_LOOP),
    Row("orderly_listener", "orderly push, listener", "PushConsumer", Use.LISTENER, Word.ORDER, orderly=True,
        wait_s=80.0),
    Row("orderly_loop", "orderly push, loop", "PushConsumer", Use.LOOP, Word.ORDER, orderly=True, wait_s=80.0,
        java=_NO_LOOP),
    Row("broadcast_listener", "broadcasting push, listener", "PushConsumer", Use.LISTENER, Word.ONCE,
        broadcasting=True),
    Row("broadcast_loop", "broadcasting push, loop", "PushConsumer", Use.LOOP, Word.ONCE, broadcasting=True,
        java=_NO_LOOP),
    Row("lite_poll", "lite pull, poll", "LitePullConsumer", Use.POLL, Word.ORDER,
        java="the position of the queue, not the messages given, is committed"),
    Row("lite_loop", "lite pull, loop", "LitePullConsumer", Use.LOOP, Word.ORDER, java=_NO_LOOP),
    Row("assigned_poll", "lite pull with assigned queues, poll", "LitePullConsumer", Use.POLL, Word.ORDER,
        assigned=True),
    Row("simple_receive", "simple, receive", "SimpleConsumer", Use.RECEIVE, Word.ONCE, wait_s=60.0,
        java="gRPC instead of the remoting protocol"),
    Row("simple_loop", "simple, loop", "SimpleConsumer", Use.LOOP, Word.ONCE, wait_s=60.0, java=_NO_LOOP),
    Row("sessions_listener", "lite topics, coroutine function as listener", "LiteConsumer", Use.LISTENER, Word.ORDER,
        wait_s=60.0, java="gRPC instead of the remoting protocol"),
    Row("sessions_plain_listener", "lite topics, plain function as listener", "LiteConsumer", Use.PLAIN_LISTENER,
        Word.ORDER, wait_s=60.0, java="gRPC instead of the remoting protocol"),
    Row("sessions_loop", "lite topics, loop", "LiteConsumer", Use.LOOP, Word.ORDER, wait_s=60.0, java=_NO_LOOP),
    Row("pull", "pull", "PullConsumer", Use.PULL, Word.ORDER),
    Row("send", "send", "Producer", Use.SEND, Word.ONCE),
    Row("submit", "submit", "Producer", Use.SEND, Word.ONCE),
    Row("oneway", "send_oneway", "Producer", Use.SEND, Word.ONCE),
    Row("batch", "send_batch", "Producer", Use.SEND, Word.ONCE),
    Row("transaction", "send_message_in_transaction", "TransactionProducer", Use.SEND, Word.ONCE,
        java="RocketMQ's broker may commit a message twice, if it is killed or checks meanwhile"),
    Row("request", "request and reply", "Producer", Use.SEND, Word.ONCE),
    Row("delayed", "send of a delayed message", "Producer", Use.SEND, Word.ONCE),
    Row("recall", "recall of a delayed message", "Producer", Use.SEND, Word.ONCE),
)  # fmt: skip
ROWS = tuple(
    replace(row, name=prefix + row.name, title=title + row.title, sync=bool(prefix))
    for prefix, title in (("", ""), ("sync_", "rucola.sync: "))
    for row in _ASYNC_ROWS
)

BASE_EXCEPTIONS = ("SystemExit", "StopIteration", "GeneratorExit", "CancelledError", "BaseException")

_NO_CALL = ("messages",)
"""Methods whose call alone does nothing."""
_GONE = "what was not consumed of the deleted topic is gone"
COLUMNS = (
    Column("nothing", "no event", Word.ONCE, Word.ONCE),
    Column("return", "return out of the loop or listener", Word.ONCE),
    Column("break", "break out of the loop", Word.ONCE),
    Column("exception", "an exception in the application's code", Word.ONCE, Word.ONCE, wait_s=10.0),
    Column("base_exception", "a BaseException in the application's code", Word.ONCE, Word.ONCE, wait_s=10.0,
           variants=BASE_EXCEPTIONS),
    Column("cancel", "cancellation of the application's task, or Ctrl-C", Word.ONCE, Word.AGAIN,
           variants=("body", "waiting", "worker")),
    Column("slow", "a body that takes 45 s", Word.ONCE, Word.ONCE, wait_s=45.0),
    Column("call", "a call of each method from inside", Word.AGAIN, Word.AGAIN, wait_s=10.0),
    Column("rebalance", "a second member joins and leaves", Word.AGAIN),
    Column("second_task", "a second task with the same object", Word.ONCE, Word.ONCE,
           java="a poll commits what another thread has polled"),
    Column("second_instance", "a second object in the process", Word.AGAIN, Word.ONCE,
           variants=("", "same_name"), java="the second start with the same name fails"),
    Column("broker_restart", "restart of the broker", Word.AGAIN, Word.AGAIN, wait_s=30.0),
    Column("broker_killed", "broker killed, back after 30 s", Word.AGAIN, Word.AGAIN, wait_s=60.0),
    Column("namesrv_gone", "name server gone for 60 s", Word.ONCE, Word.ONCE),
    Column("reset_back", "an administrator resets the offsets back", Word.AGAIN),
    Column("reset_forward", "an administrator resets the offsets forward", Word.SKIP,
           because="the administrator said so"),
    Column("pause", "pause and resume", Word.ONCE, wait_s=60.0),
    Column("seek_back", "seek back", Word.AGAIN),
    Column("seek_forward", "seek forward", Word.SKIP, because="the application said so"),
    Column("resubscribe", "unsubscribe, and subscribe after 30 s", Word.AGAIN, wait_s=30.0),
    Column("topic_recreated", "topic deleted and created again", Word.SKIP, Word.SKIP, because=_GONE,
           java="the first messages of the new topic are skipped by push and lite pull consumers"),
    Column("queue_count", "number of queues 2, 4, 2, 4", Word.AGAIN, Word.AGAIN, wait_s=60.0),
    Column("permission", "permission taken for 30 s", Word.AGAIN, Word.AGAIN, wait_s=60.0),
    Column("secret", "secret of the account changed for 30 s", Word.AGAIN, Word.AGAIN, wait_s=60.0),
    Column("shutdown", "shutdown at each step", Word.AGAIN, Word.AGAIN,
           variants=("shutdown", "cancel", "one_of_two")),
    Column("process_killed", "process killed", Word.AGAIN, Word.AGAIN, wait_s=60.0, variants=("played", "killed")),
    Column("fork", "fork", Word.ONCE, Word.ONCE),
    Column("second_loop", "use from a second event loop", Word.ONCE, Word.ONCE),
    Column("exit", "end of the interpreter with an open loop or producer", Word.AGAIN, Word.AGAIN, wait_s=60.0,
           variants=("body", "abandoned")),
)  # fmt: skip


@dataclass(frozen=True)
class Promise:
    """What a cell promises.

    Attributes:
        word: ONCE, AGAIN, SKIP or NONE.
        ordered: whether also the order of each queue is kept.
        because: the reason of SKIP and NONE, and of each exception.
    """

    word: Word
    ordered: bool = False
    because: str = ""

    @property
    def again(self) -> bool:
        """Whether a message may be given again."""
        return self.word in (Word.AGAIN, Word.SKIP)

    def __str__(self) -> str:
        words = [Word.ORDER.value] if self.ordered else []
        if not self.ordered or self.word is not Word.ONCE:
            words.append(self.word.value)
        return ", ".join(words)


Rows = Callable[[Row], bool]


@dataclass(frozen=True)
class Case:
    """Cells whose promise is not that of row and column.

    Attributes:
        rows: which rows.
        columns: names of columns.
        word: the promise.
        because: the reason.
        ordered: whether an ordered row keeps its order.
    """

    rows: Rows
    columns: Sequence[str]
    word: Word
    because: str
    ordered: bool = True


def _use(*uses: Use) -> Rows:
    return lambda row: row.use in uses


def _all(*names: str) -> Rows:
    return lambda row: row.base in names


_NO_MEMBER = "assigned queues belong to no member of the group"
_NO_POSITION = "a PullConsumer keeps no position and joins no group"
CASES: tuple[Case, ...] = (
    # leaving a loop
    Case(lambda row: row.use in LISTENERS, ("break",), Word.NONE, "a listener is no loop"),
    Case(_use(Use.POLL, Use.RECEIVE, Use.PULL), ("return", "break"), Word.NONE,
               "the application iterates over a list of its own"),
    Case(_use(Use.POLL), ("exception", "base_exception", "cancel"), Word.AGAIN,
               "the messages of a poll count as consumed together, at the next poll"),
    Case(lambda row: row.broadcasting and row.use in LISTENERS, ("exception", "base_exception"), Word.SKIP,
               "a message that failed is dropped (BROADCASTING)"),
    Case(lambda row: row.client == "SimpleConsumer", ("slow",), Word.AGAIN,
               "the message's invisible time of 10 s ends"),
    # several tasks, several members
    Case(lambda row: row.use in LISTENERS, ("second_task",), Word.NONE, "the consumer calls the listener"),
    Case(lambda row: row.is_lite, ("second_task",), Word.ONCE,
               "two tasks get parts of the same queue", ordered=False),
    Case(lambda row: row.broadcasting, ("rebalance",), Word.ONCE, "each consumer reads all queues"),
    Case(lambda row: row.client == "SimpleConsumer", ("rebalance", "second_instance"), Word.ONCE,
               "the broker hides what one of them has"),
    Case(lambda row: row.assigned, ("rebalance", "second_instance", "reset_back", "reset_forward"), Word.NONE,
               _NO_MEMBER),
    Case(_use(Use.PULL), ("rebalance", "second_instance", "reset_back", "reset_forward", "seek_back",
                                "seek_forward", "pause", "resubscribe"), Word.NONE, _NO_POSITION),
    Case(lambda row: row.broadcasting, ("reset_back", "reset_forward"), Word.NONE,
               "the broker does not know the progress of broadcasting consumers"),
    # what a class does not have
    Case(lambda row: row.client == "SimpleConsumer", ("pause", "seek_back", "seek_forward"), Word.NONE,
               "a SimpleConsumer has no such method"),
    Case(lambda row: row.is_push, ("seek_back", "seek_forward"), Word.NONE, "a PushConsumer has no such method"),
    Case(lambda row: row.assigned, ("resubscribe",), Word.NONE, "queues are assigned, not topics subscribed"),
    Case(lambda row: row.has_lite_topics, ("pause",), Word.NONE, "a LiteConsumer has no such method"),
    Case(lambda row: row.has_lite_topics, ("queue_count",), Word.NONE, "a lite topic is one queue"),
    Case(lambda row: row.has_lite_topics, ("reset_back", "reset_forward"), Word.NONE,
               "the offsets of lite topics are set by `subscribe_lite`"),
    # producers
    Case(_all("oneway"), ("broker_restart", "broker_killed", "permission", "secret", "shutdown", "cancel",
                                "process_killed", "exit", "queue_count"), Word.SKIP, "a loss is not noticed"),
    Case(_all("send", "submit", "batch", "oneway", "delayed", "recall"), ("slow",), Word.NONE,
               "no code of the application runs meanwhile"),
    Case(_all("batch", "recall"), ("exception", "base_exception", "call"), Word.NONE,
               "no code of the application runs meanwhile"),
    Case(_all("recall"), ("topic_recreated",), Word.NONE, "a timed message is not in the topic yet"),
)  # fmt: skip


def promise(row: Row, column: Column) -> Promise:
    """The promise of a cell."""
    ordered = row.word is Word.ORDER
    for case in CASES:
        if column.name in case.columns and case.rows(row):
            return Promise(case.word, ordered and case.ordered, case.because)
    word = column.sends if row.is_producer else column.word
    because = column.because
    if word is Word.NONE:
        because = because or "no message is consumed"
    return Promise(word, ordered, because)


def variants(row: Row, column: Column) -> tuple[str, ...]:
    """The forms of an event that can meet a row."""
    if (
        column.name == "base_exception" and row.name == "submit"
    ):  # asyncio ends its loop if a callback raises SystemExit
        return BASE_EXCEPTIONS[1:]
    if column.name == "cancel" and row.is_producer:
        return ("body", "worker")
    if column.name == "cancel" and row.use in LISTENERS:
        return ("body",)
    if column.name == "cancel" and row.use is Use.POLL and not row.sync:
        return column.variants
    if column.name == "cancel" and row.use is not Use.LOOP:
        return ("body", "waiting")
    if column.name == "second_instance" and row.broadcasting:
        return ("same_name",)
    alone = row.is_producer or row.use is Use.PULL or promise(row, column_named("second_task")).word is Word.NONE
    if column.name == "shutdown" and alone:
        return tuple(form for form in column.variants if form != "one_of_two")
    if column.name == "call":
        return tuple(name for name in public_methods(row.client) if name not in _NO_CALL)
    return column.variants


def public_methods(client: str) -> tuple[str, ...]:
    """Names of the public methods and properties of a class of ``rucola``."""
    return tuple(
        name
        for name, value in inspect.getmembers(getattr(rucola, client))
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    )


def row_named(name: str) -> Row:
    """The row with this name."""
    return next(row for row in ROWS if row.name == name)


def column_named(name: str) -> Column:
    """The column with this name."""
    return next(column for column in COLUMNS if column.name == name)
