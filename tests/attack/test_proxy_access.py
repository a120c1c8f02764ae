"""Accounts at ``rucola proxy``: its brokers know only the account of the proxy, so the door alone stands before what
others own. Here the brokers ask for no account at all, as brokers of RocketMQ do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ACCOUNTS, ADMIN, ALICE, BOB, write_accounts
from tests.brokers import run
from tests.unit.proxy.clusters import Client, Door, TwoBrokers, eventually
from tests.unit.proxy.doors import send_request

from rucola.broker.acl.plain_manager import PlainPermissionManager
from rucola.broker.acl.users_file import users_in_use
from rucola.cli import account_files
from rucola.cli.door_metrics import ProxyCollector
from rucola.cli.proxy_server import ProxyServer
from rucola.common.recall_handle import RecallHandle
from rucola.proxy import account_access, messages
from rucola.proxy.acknowledge import VISIBLE_SOON_MS
from rucola.proxy.cluster_access import ClusterAccess
from rucola.proxy.config import ProxyConfig
from rucola.proxy.receipt import TransactionId
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.files import Files

OK, FORBIDDEN, UNAUTHORIZED = messages.OK, messages.FORBIDDEN, messages.UNAUTHORIZED
FRONT = messages.Endpoints(scheme=messages.DOMAIN_NAME, addresses=[messages.Address(host="front", port=1)])


def resource(name: str) -> Any:
    return messages.Resource(name=name)


class Guarded:
    """Two brokers without accounts, a door with those of ``guarded``, and the three clients.

    Attributes:
        brokers: the brokers.
        watched: the accounts.
        door: the door.
        alice, bob, admin: a client of each account.
    """

    door: Door
    alice: Client
    bob: Client
    admin: Client

    def __init__(self, brokers: TwoBrokers, home: Path) -> None:
        self.brokers, self.file = brokers, write_accounts(home)
        self.watched = PlainPermissionManager(Files(), str(home), False, lambda: 0)
        self.watched.load()

    async def another_door(self, **options: Any) -> Door:
        access = ClusterAccess(lambda: self.watched.snapshot, self.brokers.monotonic, **options)
        return await self.brokers.door(access=access)

    async def client(self, secret: tuple[str, str] | None, door: Door | None = None) -> Client:
        name = "nobody" if secret is None else secret[0]
        return await self.brokers.client(door or self.door, name, secret)

    def write(self, text: str) -> None:
        """Changes the file, and lets the door see it as often as a change needs."""
        self.file.write_text(text)
        for _ in range(2):
            self.watched.reload()


@asynccontextmanager
async def guarded(folder: Path, kind: str = "NORMAL", **broker: Any) -> AsyncIterator[Guarded]:
    async with TwoBrokers(folder / "store", **broker) as brokers:
        one = Guarded(brokers, folder / "home")
        one.door = await one.another_door()
        for topic, group in (("A", "GA"), ("B", "GB")):
            await brokers.create(topic, kind, names=["a"])
            await brokers.join(group, topic)
        one.alice, one.bob, one.admin = [await one.client(secret) for secret in (ALICE, BOB, ADMIN)]
        yield one


def play(folder: Path, scene: Callable[[Guarded], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def whole() -> None:
        async with guarded(folder, **options) as one:
            await scene(one)

    run(whole())


def requests_about(topic: str, group: str, handle: str, transaction: str) -> dict[str, Any]:
    """A request of each unary method."""
    entry = messages.AckMessageEntry(receipt_handle=handle, message_id="m")
    ours = {"topic": resource(topic), "group": resource(group)}
    recall = RecallHandle(topic, "a", int(time.time() * 1000) + 60_000, "key").encode()
    return {
        "QueryRoute": messages.QueryRouteRequest(topic=resource(topic), endpoints=FRONT),
        "QueryAssignment": messages.QueryAssignmentRequest(endpoints=FRONT, **ours),
        "SendMessage": send_request(topic),
        "AckMessage": messages.AckMessageRequest(entries=[entry], **ours),
        "ChangeInvisibleDuration": messages.ChangeInvisibleDurationRequest(
            receipt_handle=handle, message_id="m", invisible_duration={"seconds": 30}, **ours
        ),
        "ForwardMessageToDeadLetterQueue": messages.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=handle, message_id="m", **ours
        ),
        "EndTransaction": messages.EndTransactionRequest(
            topic=resource(topic), transaction_id=transaction, resolution=messages.COMMIT
        ),
        "RecallMessage": messages.RecallMessageRequest(topic=resource(topic), recall_handle=recall),
    }


def handle_at(physical_offset: int, kind: str = "0", queue_offset: int = 0) -> str:
    """A receipt that nobody was given."""
    return f"0 {int(time.time() * 1000)} 60000 1 {kind} a 0 {queue_offset} {physical_offset}"


async def code_of_poll(client: Client, group: str, topic: str) -> int:
    return int((await client.receive(group, topic, broker="a").all())[0].status.code)


@pytest.mark.parametrize(
    "fields",
    [{"authorization": ""}, {"x_mq_date_time": "20261130T000001Z"}, {"x_mq_session_token": "t"}],
    ids=str,
)
def test_requests_without_a_valid_signature(tmp_path: Path, fields: dict[str, str]) -> None:
    async def scene(one: Guarded) -> None:
        for name, request in requests_about("A", "GA", handle_at(0), "key").items():
            answer = await one.alice.call(name, request, **fields)
            assert answer.status.code == UNAUTHORIZED, name
        assert (await one.alice.call("Heartbeat", messages.HeartbeatRequest(), **fields)).status.code == UNAUTHORIZED
        assert (await one.alice.receive("GA", "A", headers=fields).all())[0].status.code == UNAUTHORIZED
        stream = one.alice.begin("Telemetry", messages.TelemetryCommand(), end=False, timeout="", **fields)
        assert [answer.status.code for answer in await stream.all()] == [UNAUTHORIZED] and stream.status == 0
        assert not len(one.door.door.sessions) and not sum(map(sum, (await one.brokers.stored("A")).values()))

    play(tmp_path, scene)


def test_signatures_that_can_be_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others read the connection of a client from elsewhere, and could send its requests again."""

    async def scene(one: Guarded) -> None:
        assert (await one.alice.sent("A")).status.code == OK
        monkeypatch.setattr(account_access, "is_loopback", lambda address: False)
        doors = {UNAUTHORIZED: await one.another_door(), OK: await one.another_door(insecure=True)}
        for code, door in doors.items():
            assert (await (await one.client(ALICE, door)).sent("A")).status.code == code
        strict = await one.another_door(insecure=True, require_v2=True)
        assert (await (await one.client(ALICE, strict)).sent("A")).status.code == UNAUTHORIZED

    play(tmp_path, scene)


def test_every_method_asks_for_the_rights_of_the_remoting_port(tmp_path: Path) -> None:
    """Whoever may not use an object does not learn whether it exists."""

    async def scene(one: Guarded) -> None:
        for topic, group in (("B", "GB"), ("Absent", "GAbsent")):
            requests = requests_about(topic, group, handle_at(0), TransactionId("key", "a", 0, 0).encode())
            codes = {name: (await one.alice.call(name, request)).status.code for name, request in requests.items()}
            assert codes == dict.fromkeys(requests, FORBIDDEN)
            assert await code_of_poll(one.alice, group, topic) == FORBIDDEN
        assert await code_of_poll(one.alice, "GA", "B") == await code_of_poll(one.alice, "GB", "A") == FORBIDDEN
        for fields in (
            {"publishing": messages.Publishing(topics=[resource("A"), resource("B")])},
            {"subscription": messages.Subscription(group=resource("GB"))},
        ):
            stream = one.alice.settings(**fields)
            assert [answer.status.code for answer in await stream.all()] == [FORBIDDEN] and stream.status == 0
        assert not one.door.brokers._groups._entries.keys() & {"GB", "GAbsent"}, "no broker was asked for a group"
        assert "GAbsent" not in one.brokers.brokers["a"].groups.table

        assert (await one.alice.sent("A")).status.code == (await one.alice.route("A")).status.code == OK
        (message,) = await one.alice.received("GA", "A", broker="a")
        assert (await one.alice.ack("GA", "A", message)).status.code == OK
        assert (await one.bob.sent("A")).status.code == FORBIDDEN and (await one.bob.route("A")).status.code == OK
        assert (await one.admin.sent("B")).status.code == OK

    play(tmp_path, scene)


def test_receipts_reach_nothing_of_others(tmp_path: Path) -> None:
    """A client writes any broker, queue and place into a receipt; the place is that of a message of Bob."""

    async def scene(one: Guarded) -> None:
        await one.bob.sent("B", b"a secret of Bob")
        await one.alice.sent("A", b"own")
        (own,) = await one.alice.received("GA", "A", broker="a")
        receipt = own.system_properties.receipt_handle
        place = int(receipt.split(" ")[8])
        assert place, "Bob's message is the first of the log"

        async def code(name: str, topic: str, group: str, handle: str) -> int:
            answer = await one.alice.call(name, requests_about(topic, group, handle, "")[name])
            return int(answer.status.code)

        for kind in "012":
            stolen = handle_at(0, kind)
            assert await code("ForwardMessageToDeadLetterQueue", "A", "GA", stolen) == FORBIDDEN
        assert await code("ForwardMessageToDeadLetterQueue", "A", "GA", handle_at(place + 4)) == FORBIDDEN
        for topic, group in (("B", "GA"), ("A", "GB"), ("B", "GB"), ("%RETRY%GB", "GA"), ("%DLQ%GB", "GA")):
            for name in ("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"):
                assert await code(name, topic, group, receipt) == FORBIDDEN, (name, topic, group)
        many = messages.AckMessageRequest(topic=resource("B"), group=resource("GB"))
        for _ in range(2):
            many.entries.add(receipt_handle=handle_at(0), message_id="m")
        answer = await one.alice.call("AckMessage", many)
        assert [answer.status.code, *(entry.status.code for entry in answer.entries)] == [FORBIDDEN] * 3
        (untouched,) = await one.bob.received("GB", "B", broker="a")
        assert (untouched.body, untouched.system_properties.delivery_attempt) == (b"a secret of Bob", 1)
        assert not sum((await one.brokers.stored("%DLQ%GA"))["a"])

        assert await code("ForwardMessageToDeadLetterQueue", "A", "GA", receipt) == OK
        assert sum((await one.brokers.stored("%DLQ%GA"))["a"]) == 1

    play(tmp_path, scene)


def test_transactions_of_others(tmp_path: Path) -> None:
    async def scene(one: Guarded) -> None:
        sent = await one.alice.sent("A", b"half", message_type=messages.TRANSACTION)
        ours = await one.bob.sent("B", b"Bob's", message_type=messages.TRANSACTION)
        place = TransactionId.decode(sent.entries[0].transaction_id)
        theirs = TransactionId.decode(ours.entries[0].transaction_id)
        elsewhere = await one.client(BOB, await one.another_door())
        forged = (
            place,
            place._replace(unique_key=theirs.unique_key),
            theirs._replace(physical_offset=place.physical_offset),
            place._replace(half_queue_offset=theirs.half_queue_offset),
            place._replace(physical_offset=place.physical_offset + 1),
        )
        for bob in (one.bob, elsewhere):
            for one_of_them in forged:
                assert await bob.end("B", one_of_them.encode(), "m", messages.COMMIT) == FORBIDDEN, one_of_them
        own = await elsewhere.sent("B", b"also Bob's", message_type=messages.TRANSACTION)
        mine = TransactionId.decode(own.entries[0].transaction_id)
        moved = mine._replace(physical_offset=place.physical_offset, half_queue_offset=place.half_queue_offset)
        assert await elsewhere.end("B", moved.encode(), "m", messages.COMMIT) == FORBIDDEN
        assert await one.bob.end("B", place.unique_key, "m", messages.COMMIT) == messages.INTERNAL_SERVER_ERROR
        assert await one.bob.end("A", place.encode(), "m", messages.COMMIT) == FORBIDDEN
        one.write(ACCOUNTS.replace("- A=SUB", "- A=PUB|SUB"))
        assert await one.bob.end("A", place.encode(), "m", messages.COMMIT) == FORBIDDEN, "he has not sent it"
        assert not sum(map(sum, (await one.brokers.stored("A")).values()))
        assert await one.admin.end("A", place.encode(), "m", messages.COMMIT) == OK
        assert await elsewhere.end("B", theirs.encode(), "m", messages.COMMIT) == OK, "another door asks the broker"
        assert [sum((await one.brokers.stored(topic))["a"]) for topic in "AB"] == [1, 1]

    play(tmp_path, scene, kind="TRANSACTION")


def test_recall_handles_of_others(tmp_path: Path) -> None:
    async def scene(one: Guarded) -> None:
        due = {"seconds": int(time.time()) + 600}
        sent = await one.alice.sent("A", b"later", message_type=messages.DELAY, delivery_timestamp=due)
        handle = sent.entries[0].recall_handle

        async def status(client: Client, topic: str) -> Any:
            request = messages.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
            return (await client.call("RecallMessage", request)).status

        assert (await status(one.bob, "A")).code == FORBIDDEN
        assert (await status(one.bob, "B")).message == "the recall handle is of another topic"
        assert (await status(one.alice, "A")).code == OK

    play(tmp_path, scene, kind="DELAY", recall_message_enable=True)


def test_an_account_that_is_removed_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has popped for it, and knows nothing of the account. The message is visible soon, for others."""
    shown: list[int] = []
    change = ConsumerApi.change_invisible_time

    async def changed(api: ConsumerApi, address: str, header: Any, timeout_ms: int = 0) -> Any:
        answer = await change(api, address, header, timeout_ms)
        shown.append(header.invisible_time)
        return answer

    monkeypatch.setattr(ConsumerApi, "change_invisible_time", changed)

    async def scene(one: Guarded) -> None:
        stream = await one.alice.consumes("GA", "A")
        poll = one.alice.receive("GA", "A", broker="a", auto_renew=True)

        async def waits() -> bool:
            return one.brokers.waiting_polls("a") == 1

        await eventually(waits)
        one.write(ACCOUNTS.replace(ALICE[0], "somebody-else"))
        assert (await one.alice.sent("A")).status.code == UNAUTHORIZED
        heartbeat = await one.alice.call("Heartbeat", messages.HeartbeatRequest(group=resource("GA")))
        assert heartbeat.status.code == UNAUTHORIZED
        assert (await one.admin.sent("A", b"not for her")).status.code == OK
        status, *rest = await poll.all()
        assert status.status.code == UNAUTHORIZED and [one.WhichOneof("content") for one in rest] == [
            "delivery_timestamp"
        ]
        assert not len(one.door.door.renewals)

        async def is_shown() -> bool:
            return shown == [VISIBLE_SOON_MS]

        await eventually(is_shown)
        assert stream.status is None and stream.is_empty()

    play(tmp_path, scene)


def test_rights_that_are_withdrawn(tmp_path: Path) -> None:
    async def scene(one: Guarded) -> None:
        await one.alice.consumes("GA", "A")
        await one.alice.sent("A")
        (message,) = await one.alice.received("GA", "A", broker="a", auto_renew=True)
        one.write(ACCOUNTS.replace("GA=SUB", "GA=DENY"))
        heartbeat = messages.HeartbeatRequest(group=resource("GA"))
        assert (await one.alice.call("Heartbeat", heartbeat)).status.code == FORBIDDEN
        renewals = one.door.door.renewals
        ((held,),) = (of_client.values() for of_client in renewals._held.values())
        before = held.handle
        for _ in range(3):
            await renewals._renew(held)
        assert held.handle == before and not len(renewals), "the broker would hide it for hours"
        assert (await one.alice.ack("GA", "A", message)).status.code == FORBIDDEN
        assert (await one.alice.sent("A")).status.code == OK, "only the group is lost"
        one.write(ACCOUNTS.replace(f"secretKey: {ALICE[1]}", f"secretKey: {ALICE[1]}\n    disabled: true"))
        assert (await one.alice.sent("A")).status.code == UNAUTHORIZED

    play(tmp_path, scene)


def test_broken_accounts_while_it_runs(tmp_path: Path) -> None:
    """The last good ones stay in use, and everybody else stays out."""

    async def scene(one: Guarded) -> None:
        for text in ("accounts: 7\n", "\0", "accounts:\n- accessKey: al"):
            one.write(text)
            assert one.watched.error
            assert (await one.alice.sent("A")).status.code == OK
            assert (await one.bob.sent("A")).status.code == FORBIDDEN
            assert (await (await one.client(("nobody", "x" * 20))).sent("A")).status.code == UNAUTHORIZED
        one.file.unlink()
        for _ in range(2):
            one.watched.reload()
        assert one.watched.error and (await one.alice.sent("A")).status.code == OK
        one.write(ACCOUNTS)
        assert not one.watched.error

    play(tmp_path, scene)


def test_client_ids_and_answers_of_others(tmp_path: Path) -> None:
    """Bob has the client id of Alice, and answers what she was asked."""

    async def scene(one: Guarded) -> None:
        bob = await one.brokers.client(one.door, ALICE[0], BOB)
        stream = await one.alice.consumes("GA", "A", client_type=messages.PUSH_CONSUMER)
        mine = await bob.consumes("GB", "B", client_type=messages.PUSH_CONSUMER)
        assert len(one.door.door.sessions) == 2
        address = one.brokers.brokers["a"].address
        asked = asyncio.ensure_future(one.brokers.api.running_info(address, "GA", ALICE[0], jstack=True))
        nonce = (await stream.next()).print_thread_stack_trace_command.nonce
        for who, text in ((mine, "forged"), (stream, "her own")):
            trace = messages.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
            who.send(messages.TelemetryCommand(status=messages.Status(code=OK), thread_stack_trace=trace))
            await asyncio.sleep(0.05)
        assert (await asked)["jstack"] == "her own"
        assert mine.is_empty()

    play(tmp_path, scene)


def test_rules_that_name_addresses(tmp_path: Path) -> None:
    """A client that comes from an allowed address opens no way for the same account from elsewhere."""

    async def scene(one: Guarded) -> None:
        user = {"username": ALICE[0], "password": ALICE[1], "userType": "Normal", "userStatus": "enable"}
        entry = {"resource": "*", "actions": ["Pub", "Sub"], "decision": "Allow", "sourceIps": ["127.0.0.2"]}
        users = users_in_use({ALICE[0]: user}, {ALICE[0]: [{"policyType": "Custom", "entries": [entry]}]}, checked=True)
        door = await one.brokers.door(access=ClusterAccess(lambda: users, one.brokers.monotonic))
        codes = []
        for own in ("127.0.0.2", "127.0.0.1", "127.0.0.2"):
            client = Client("same", ALICE)
            await client.connect(door.door.address, own)
            codes.append((await client.sent("A")).status.code)
            codes.append(await code_of_poll(client, "GA", "A"))
            client.close()
        assert codes == [OK, OK, FORBIDDEN, FORBIDDEN, OK, OK]

    play(tmp_path, scene)


def test_the_server_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options lead to all this, its files are watched, and its metrics say what it has refused."""
    monkeypatch.setattr(account_files, "RELOAD_INTERVAL_S", 0.01)

    def samples(proxy: ProxyServer) -> dict[str, float]:
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for metric in ProxyCollector(proxy).collect()
            for sample in metric.samples
        }

    async def scene(one: Guarded) -> None:
        config = ProxyConfig(
            namesrv_addr=one.brokers.namesrv.address,
            grpc_server_port=0,
            acl_enable=True,
            rocketmq_home=str(tmp_path / "home"),
        )
        proxy = ProxyServer(config)
        await proxy.start()
        clients = [Client(secret[0], secret) for secret in (ALICE, BOB, (ALICE[0], "wrong"))]
        for client in clients:
            await client.connect(proxy.address)

        async def codes() -> list[int]:
            return [(await client.sent("A")).status.code for client in clients]

        assert await codes() == [OK, FORBIDDEN, UNAUTHORIZED]
        found = samples(proxy)
        assert (found["rucola_acl_refused_total"], found["rucola_acl_unknown_senders_total"]) == (2, 1)
        assert found["rucola_grpc_outcomes_total SendMessage FORBIDDEN"] == 1
        assert (found["rucola_grpc_clients"], found["rucola_proxy_links"], found["rucola_acl_stale"]) == (2, 1, 0)
        assert found["rucola_proxy_brokers"] == 1, "that of the topic"
        one.file.write_text("accounts: 7\n")

        async def is_stale() -> bool:
            return samples(proxy)["rucola_acl_stale"] == 1

        await eventually(is_stale)
        assert await codes() == [OK, FORBIDDEN, UNAUTHORIZED]
        one.file.write_text(ACCOUNTS.replace(ALICE[1], "wrong-secret-of-alice"))

        async def is_changed() -> bool:
            return await codes() == [UNAUTHORIZED, FORBIDDEN, UNAUTHORIZED]

        await eventually(is_changed)
        for client in clients:
            client.close()
        await proxy.stop()

    play(tmp_path, scene)
