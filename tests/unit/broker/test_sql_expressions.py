"""Long SQL92 expressions are compiled in several turns of the event loop, whatever request brings them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from tests.attack.guarded import ALICE, Guarded, signed
from tests.brokers import Cluster, RawConnection, properties_text, run

from rucola.broker.filter import sql_expressions
from rucola.broker.filter.sql_expressions import CHEAP_CHARS, KEPT_CHARS_MAX, SqlExpressions
from rucola.broker.processor import client_manage
from rucola.broker.senders import Senders
from rucola.broker.shares import Shares
from rucola.errors import BrokerError, FormatError
from rucola.filter import sql
from rucola.filter.sql.grammar import LENGTH_MAX
from rucola.filter.sql.program import compile_steps
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.remoting.channel import Channel

BUSY = 2


def long_text(name: str = "a", chars: int = LENGTH_MAX) -> str:
    """An expression of about ``chars`` characters that messages with ``name`` = 7 pass."""
    text = " OR ".join(f"{name} = {number}" for number in range(3000))[:chars]
    return text[: text.rindex(" OR ")]


SHORT_BODY = long_text(chars=4000)
"""A body with this expression is parsed at once, on the event loop."""


def heartbeat(*texts: str, version: int = 1) -> RemotingCommand:
    found = [
        SubscriptionData(f"T{n}", text, sub_version=version, expression_type="SQL92") for n, text in enumerate(texts)
    ]
    data = HeartbeatData("me@1", [], [ConsumerData("cg", subscription_data_set=found)])
    return RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())


def pop(text: str, group: str = "cg", poll_ms: int = 0) -> RemotingCommand:
    header = PopMessageRequestHeader(group, "T", 0, 8, 60_000, poll_ms, 0, 0, "SQL92", text)
    return RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=header.to_ext_fields())


def check(text: str) -> RemotingCommand:
    body = CheckClientRequestBody("me@1", "cg", SubscriptionData("T", text, expression_type="SQL92"))
    return RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())


class Compiled(list[str]):
    """The texts that were compiled. While they are ``held``, compilations take more and more steps."""

    held = False


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Makes every step of a compilation a turn."""
    monkeypatch.setattr("rucola.remoting.fairness.steps.PIECE_S", -1.0)
    texts = Compiled()

    def noted(text: str) -> sql.Steps[sql.SqlExpression]:
        texts.append(text)
        for _ in range(1_000_000):
            if not texts.held:
                break
            yield
        return (yield from compile_steps(text))

    monkeypatch.setattr(sql, "compile_steps", noted)
    return texts


async def settled(cluster: Cluster) -> None:
    while cluster.broker.services.expressions._waiting.count:
        await asyncio.sleep(0)


def test_a_long_expression_is_compiled_in_many_short_steps() -> None:
    """Before the fix, 16 KiB took 78 ms without a pause."""
    assert sum(1 for _ in compile_steps(long_text())) > 100
    between = " OR ".join(["a BETWEEN 1 AND 2"] * 700)
    assert sum(1 for _ in compile_steps(between)) > 140, "instructions count, too"


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["pull", "heartbeat", "pop", "check"])
def test_others_are_served_while_an_expression_is_compiled(tmp_path: Path, steps: Compiled, kind: str) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            for number in (7, 5):
                await cluster.send("T", b"%d" % number, properties_text(UNIQ_KEY="U", a=str(number)))
            text = long_text()
            commands: dict[str, RemotingCommand] = {
                "pull": cluster.pull_command("T", expression=text, expression_type="SQL92"),
                "heartbeat": heartbeat(text, long_text("b")),
                "pop": pop(text, poll_ms=60_000),  # it is not too old, however long its expression takes
                "check": check(text),
            }
            await cluster.client.invoke(cluster.broker.address, check("a = 1"), 10_000)  # imports the processors
            await cluster.client.invoke(cluster.broker.address, pop("a = 7", "other"), 10_000)
            await cluster.ask(30, {"topic": "T", "queueId": "0"})
            steps.clear()
            steps.held = True
            asking = asyncio.ensure_future(cluster.client.invoke(cluster.broker.address, commands[kind], 60_000))
            while not cluster.broker.services.expressions._waiting.count:
                await asyncio.sleep(0)
            for _ in range(3):
                assert (await cluster.ask(30, {"topic": "T", "queueId": "0"})).code == 0
            assert not asking.done() and steps, "the others were served first"
            steps.held = False
            answer = await asking
            assert answer.code == 0
            assert steps == ([text, long_text("b")] if kind == "heartbeat" else [text])
            if kind in ("pull", "pop"):
                assert [message.body for message in decode_messages(answer.body)] == [b"7", b"5"]
            if kind == "heartbeat":
                found = cluster.broker.services.filters.get("T1", "cg")
                assert found is not None and found[1].text == long_text("b")
            again = pop(text) if kind == "pop" else commands[kind]
            await cluster.client.invoke(cluster.broker.address, again, 60_000)
            assert len(steps) == (2 if kind == "heartbeat" else 1), "results are kept"

    run(scene())


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["pull", "heartbeat", "pop", "check"])
def test_expressions_are_refused_when_too_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            await cluster.send("T")
            text = long_text()
            commands: dict[str, RemotingCommand] = {
                "pull": cluster.pull_command("T", expression=text, expression_type="SQL92"),
                "heartbeat": heartbeat(text),
                "pop": pop(text),
                "check": check(text),
            }
            expressions = cluster.broker.services.expressions
            monkeypatch.setattr(expressions, "_waiting", Shares(len(text) - 1, len(text) - 1, 0))
            assert (await cluster.client.invoke(cluster.broker.address, commands[kind], 10_000)).code == BUSY
            assert expressions._waiting.count == 0
            monkeypatch.setattr(expressions, "_waiting", Shares(len(text), len(text), 0))
            answer = await cluster.client.invoke(cluster.broker.address, commands[kind], 60_000)
            assert answer.code in (0, 20, 210)

    run(scene())


async def sent(connection: RawConnection, *commands: RemotingCommand) -> None:
    for number, command in enumerate(commands):
        connection.send(command, number)
    answers: list[tuple[int, int]] = []
    while len(answers) < len(commands):
        frame = await connection.receive()
        if frame.flag & FLAG_RESPONSE:  # the others are requests of the broker
            answers.append((frame.opaque, frame.code))
    assert sorted(answers) == [(number, 0) for number in range(len(commands))]


def test_the_newest_heartbeat_of_a_connection_counts(tmp_path: Path, steps: Compiled) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            services = cluster.broker.services
            connection = await cluster.connect()
            await sent(connection, heartbeat("x = 1"))
            await sent(connection, heartbeat(SHORT_BODY), heartbeat("x = 1", "y = 2", version=2))
            group = services.consumers.group("cg")
            assert group is not None and set(group.subscriptions) == {"T0", "T1"}
            found = services.filters.get("T0", "cg")
            assert found is not None and (found[1].text, found[0].client_version) == ("x = 1", 2)
            leave = RemotingCommand(
                RequestCode.UNREGISTER_CLIENT, ext_fields={"clientID": "me@1", "consumerGroup": "cg"}
            )
            await sent(connection, heartbeat(SHORT_BODY.replace("a", "b"), version=3), leave)
            assert services.consumers.group("cg") is None, "it left after its heartbeat"
            await sent(connection, heartbeat("z = 1", version=4))
            assert services.consumers.group("cg") is not None
            connection.close()

    run(scene())


def test_a_heartbeat_that_comes_while_an_unregistration_waits_is_served_after_it(
    tmp_path: Path, steps: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if nothing of it must be compiled: a program that starts its consumer again would have been forgotten."""

    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            services = cluster.broker.services
            connection = await cluster.connect()
            await sent(connection, heartbeat("x = 1"))
            leave, late = client_manage._leave, list[asyncio.Future[Any]]()

            def left(channel: Any, done: asyncio.Future[None]) -> None:
                leave(channel, done)
                if not late:
                    processor = client_manage.ClientManageProcessor(services)
                    answer: Any = processor.heartbeat(channel, heartbeat("x = 1", version=3))
                    late.append(asyncio.ensure_future(answer) if asyncio.iscoroutine(answer) else _done(answer))

            monkeypatch.setattr(client_manage, "_leave", left)
            unregister = RemotingCommand(
                RequestCode.UNREGISTER_CLIENT, ext_fields={"clientID": "me@1", "consumerGroup": "cg"}
            )
            await sent(connection, heartbeat(SHORT_BODY, version=2), unregister)
            assert (await late[0]).code == 0
            group = services.consumers.group("cg")
            assert group is not None and group.client_ids() == ["me@1"]
            connection.close()

    run(scene())


def test_a_pop_whose_connection_closes_while_its_expression_is_compiled_hands_the_message_on(
    tmp_path: Path, steps: Compiled
) -> None:
    """Its message may have woken no other pop. Before the fix, the other one waited for its deadline."""

    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            await cluster.send("T", b"old")
            assert (await cluster.client.invoke(cluster.broker.address, pop("a is null"), 10_000)).code == 0
            text, hold = long_text(), cluster.broker.services.pops.get().hold
            connection = await cluster.connect()
            steps.held = True
            connection.send(pop(text, poll_ms=60_000), 1)
            while not hold._pops:
                await asyncio.sleep(0.001)
            waiting = asyncio.ensure_future(
                cluster.client.invoke(cluster.broker.address, pop("a is null", poll_ms=60_000), 90_000)
            )
            while not len(hold):
                await asyncio.sleep(0.001)
            with mock.patch.object(hold, "arrived"):  # the message has woken the pop that is compiled
                await cluster.send("T", b"new")
                await cluster.ask(30, {"topic": "T", "queueId": "0"})
            connections = cluster.broker.connections
            connection.close()
            while cluster.broker.connections == connections:
                await asyncio.sleep(0.001)
            steps.held = False
            assert [message.body for message in decode_messages((await waiting).body)] == [b"new"]
            assert hold._pops == {}

    run(scene())


def _done(answer: RemotingCommand) -> asyncio.Future[RemotingCommand]:
    future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def test_a_client_that_left_meanwhile_is_not_registered(tmp_path: Path, steps: Compiled) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            services = cluster.broker.services
            connection = await cluster.connect()
            await sent(connection, heartbeat("x = 1"))
            await cluster.send("T")
            connection.send(heartbeat(SHORT_BODY, version=2), 1)
            connection.send(cluster.pull_command("T", expression=long_text("b"), expression_type="SQL92"), 2)
            while services.expressions._waiting.count < LENGTH_MAX:
                await asyncio.sleep(0)
            connection.close()
            await settled(cluster)
            assert services.consumers.group("cg") is None
            assert steps[-2:] == [SHORT_BODY, long_text("b")]

    run(scene())


def test_the_broker_stops_while_expressions_wait(tmp_path: Path, steps: Compiled) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            await cluster.send("T")
            connection = await cluster.connect()
            for number in range(40):
                text = long_text(f"a{number}")
                connection.send(cluster.pull_command("T", expression=text, expression_type="SQL92"), number)
            while not steps:
                await asyncio.sleep(0)
            await cluster.stop_broker()
            assert len(steps) < 40 and not cluster.broker.services.expressions._resuming
            connection.close()

    run(scene())


class Account(Senders):
    """Notes for whom is served."""

    serving = "alice"

    def resumption(self) -> Any:
        name = self.serving
        return lambda: setattr(self, "serving", name)


def test_a_request_that_waited_is_served_for_its_account() -> None:
    async def scene() -> None:
        account = Account()
        expressions = SqlExpressions(lambda: account)
        compiled = expressions.compiled(cast(Channel, Owing()), [long_text()])
        account.serving = "bob"
        async with compiled:
            assert account.serving == "alice"

    run(scene())


def test_names_that_a_late_heartbeat_makes_count_for_its_account(tmp_path: Path, steps: Compiled) -> None:
    async def scene() -> None:
        async with Guarded(tmp_path, enable_property_filter=True, auto_create_per_account_max=0) as cluster:
            beat = heartbeat(long_text())
            beat.body = beat.body.replace(b'"cg"', b'"GA"').replace(b"T0", b"A")
            asking = asyncio.ensure_future(cluster.as_account(ALICE, signed(beat, ALICE)))
            while not steps:
                await asyncio.sleep(0)
            cluster.access.guard.serve("")
            assert (await asking).code == 16, "the group would be one more name of the account"

    run(scene())


def test_a_heartbeat_whose_account_loses_its_rights_while_it_waits_is_refused(tmp_path: Path, steps: Compiled) -> None:
    async def scene() -> None:
        async with Guarded(tmp_path, enable_property_filter=True) as cluster:
            beat = heartbeat(long_text())
            beat.body = beat.body.replace(b'"cg"', b'"GA"').replace(b"T0", b"A")
            asking = asyncio.ensure_future(cluster.as_account(ALICE, signed(beat, ALICE)))
            while not steps:
                await asyncio.sleep(0)
            accounts = cluster.access.snapshot().accounts
            del accounts[ALICE[0]]  # type: ignore[attr-defined]
            assert (await asking).code == 16
            assert cluster.broker.services.consumers.group("GA") is None

    run(scene())


def test_kept_results_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    expressions = SqlExpressions(Senders)
    compiled: list[str] = []

    def quick(text: str) -> sql.Steps[sql.SqlExpression]:
        compiled.append(text)
        if text.startswith("!"):
            raise FormatError("SQL92 expression", 0, "a token", "!")
        yield from ()
        return sql.compile_sql("a = 1")

    monkeypatch.setattr(sql, "compile_steps", quick)
    texts = [f"{number:07d}".ljust(KEPT_CHARS_MAX // 4) for number in range(5)]
    assert expressions.must_wait(texts[:1]) and not expressions.must_wait(["x" * CHEAP_CHARS] * 2)
    assert expressions.must_wait(["x" * CHEAP_CHARS, "y"])
    for text in texts[:4]:
        expressions.compile(text)
    expressions.compile(texts[0])
    expressions.compile(texts[4])
    assert compiled == texts and not expressions.must_wait([texts[0], *texts[2:]])
    assert expressions.must_wait(texts[1:2]), "the one that was not used for the longest time was dropped"
    for _ in range(2):
        with pytest.raises(FormatError) as caught:
            expressions.compile("!")
        assert len(caught.traceback) == 2, "the error that is kept does not grow"
    assert compiled.count("!") == 1


def test_no_room_is_lost_by_requests_that_are_refused() -> None:
    async def scene() -> None:
        expressions = SqlExpressions(Senders)
        share = ["x" * (sql_expressions.WAITING_CHARS_MAX // 4)]
        one, *others = (cast(Channel, Owing(remote_address=f"10.0.0.{number}:1")) for number in range(5))
        held = [expressions.compiled(one, share)]
        with pytest.raises(BrokerError):
            expressions.compiled(one, ["y"])
        held += [expressions.compiled(other, share) for other in others[:3]]
        late = expressions.compiled(others[3], ["x" * LENGTH_MAX])  # it is full, but each may have one expression
        with pytest.raises(BrokerError):
            expressions.compiled(others[3], ["y"])
        for context in (*held, late):
            async with context:
                pass
        async with expressions.compiled(one, ["a = 1"]):
            assert expressions._waiting.count == 5
        assert expressions._waiting.count == 0


def test_a_request_that_ends_while_it_waits_leaves_its_room() -> None:
    async def scene() -> None:
        expressions = SqlExpressions(Senders)
        before = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            async with expressions.compiled(cast(Channel, Owing()), ["a = 1"], before):
                raise AssertionError("the request before it has not ended")

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        assert expressions._waiting.count == 5
        waiting.cancel()
        await asyncio.wait([waiting])
        assert expressions._waiting.count == 0

    run(scene())


class Owing:
    """A connection that notes what it owes."""

    def __init__(self, closed: bool = False, remote_address: str = "10.0.0.9:1") -> None:
        self.closed = closed
        self.remote_address = remote_address
        self.owed: list[int] = []

    def owe(self, size: int) -> None:
        self.owed.append(size)

    def settle(self, size: int) -> None:
        self.owed.remove(size)


def test_one_request_at_a_time_is_compiled_and_each_goes_on_even_if_its_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rucola.remoting.fairness.steps.PIECE_S", -1.0)
    seen: list[str] = []

    def noted(text: str) -> sql.Steps[sql.SqlExpression]:
        seen.append(f"begin {text[0]}")
        result = yield from compile_steps(text)
        seen.append(f"end {text[0]}")
        return result

    monkeypatch.setattr(sql, "compile_steps", noted)

    async def scene() -> None:
        expressions = SqlExpressions(Senders)
        peers = {name: Owing(closed=name == "b") for name in "abc"}
        for name, peer in peers.items():
            expressions.start(cast(Any, peer), long_text(name), lambda name=name: seen.append(f"serve {name}"))
            assert peer.owed == [len(long_text(name))], "its memory counts while it waits"
        await asyncio.gather(*expressions._resuming)
        assert seen == [f"{happened} {name}" for name in "abc" for happened in ("begin", "end", "serve")]
        assert not any(peer.owed for peer in peers.values())

    run(scene())
