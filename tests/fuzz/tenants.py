"""Fuzzes a broker with accounts by requests of every code from one low account, and watches the ledger of its tenants.

    python -m tests.fuzz.tenants --requests 1000000

The attacker knows what it should not: names, ids and positions of the tenants' messages. It may read and write a topic
of its own, and write to the topic into which a tenant sends transactions. Meanwhile the tenants send plain, delayed and
transactional messages. In the end each acknowledged message is there once, each transaction has its tenant's outcome,
and no byte of their bodies was sent to the attacker. The longest turn of the broker's loop and the p99.9 of the
tenants' sends are printed beside a run without the attacker; they are figures, not limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.attack.guarded import ADMIN, ALICE, BOB, signed
from tests.attack.siege.target import Target
from tests.brokers import properties_text
from tests.fuzz.live import VALUES, Requests

from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient

PLAIN, SHARED = "B", "WriteOnly"
"""Topics of the tenants: one account sends plain messages to the first, another sends transactions to the second."""
GROUP, CLIENT = "tenant-pg", "tenant"
PERIOD_S = 0.02
PER_CONNECTION, CONNECTIONS = 200, 6
LISTENING_S = 12.0
"""The broker asks about a transaction after six to nine seconds."""
CODES = [*map(int, RequestCode), 0, 9999]
FIELDS = ["topic", "b", "consumerGroup", "group", "producerGroup", "clientID", "clientId", "queueId", "offset", "msgId"]
FIELDS += ["commitLogOffset", "tranStateTableOffset", "transactionId", "commitOrRollback", "key", "maxNum", "username"]
FIELDS += ["queueOffset", "extraInfo", "accessKey", "fromTransactionCheck", "recallHandle", "originTopic", "delayLevel"]
NAMES = [PLAIN, SHARED, "GB", GROUP, CLIENT, BOB[0], ADMIN[0], "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "A"]
NAMES += [
    "%RETRY%GB",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "rmq_sys_wheel_timer",
    "GA",
    "DefaultCluster_REPLY_TOPIC",
    "8",
    "12",
]


class Place(NamedTuple):
    """Where a half message is, and its id: what ends its transaction."""

    queue_offset: int
    physical_offset: int
    key: str


@dataclass
class Ledger:
    """The tenants: what they sent, and what must come of it."""

    address: str
    token: str
    places: Path
    plain: dict[str, int] = field(default_factory=dict)
    """Bodies sent to ``PLAIN``, and the code of the answer."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Bodies of the transactions, and the outcome that their tenant has decided."""
    sends_ms: list[float] = field(default_factory=list)
    ends: bool = False
    """Whether the tenants stop after their next message."""

    def __post_init__(self) -> None:
        self._bob, self._admin, self._number = RemotingClient(), RemotingClient(), 0
        self._admin.register_processor(RequestCode.CHECK_TRANSACTION_STATE, self._asked)

    async def ask(self, account: tuple[str, str], code: int, fields: Any = None, body: bytes = b"") -> RemotingCommand:
        client = self._bob if account is BOB else self._admin
        command = signed(RemotingCommand(code, ext_fields=dict(fields or {}), body=body), account)
        return await client.invoke(self.address, command, 60_000)

    async def begin(self) -> None:
        """Creates the topics and groups, and registers the producer of the transactions."""
        for topic in (PLAIN, SHARED, "A"):
            fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
            fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
            assert (await self.ask(ADMIN, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
        for group in ("GA", "GB"):
            body = json.dumps({"groupName": group}).encode()
            assert (await self.ask(ADMIN, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        await self._beat()

    async def run(self, seconds: float) -> None:
        """Sends for some time."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.ends:
            began = time.monotonic()
            if self._number % 5 == 4:
                await self._transaction()
            else:
                await self._plain()
            self._number += 1
            if self._number % 250 == 0:
                await self._beat()
            await asyncio.sleep(max(0.0, began + PERIOD_S - time.monotonic()))

    async def problems(self) -> list[str]:
        """What is lost, twice or foreign; waits until it must be there."""
        deadline, found = time.monotonic() + 40, ["nothing was looked at"]
        while found and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            sure = {body for body, code in self.plain.items() if code == 0}
            found = self._compare(PLAIN, await self._bodies(BOB, PLAIN, "GB"), sure, set(self.plain))
            expected = {body for body, outcome in self.outcomes.items() if outcome == 8}
            found += self._compare(SHARED, await self._bodies(ADMIN, SHARED, "GA"), expected, expected)
        return found

    async def close(self) -> None:
        await self._bob.close()
        await self._admin.close()

    def _compare(self, topic: str, bodies: list[str], expected: set[str], allowed: set[str]) -> list[str]:
        ours = [body for body in bodies if body.startswith(self.token)]
        found = [f"{topic}: {body} is lost" for body in sorted(expected - set(ours))[:3]]
        found += [f"{topic}: {body} is there without its tenant's will" for body in sorted(set(ours) - allowed)[:3]]
        if len(ours) != len(set(ours)):
            found.append(f"{topic}: {len(ours) - len(set(ours))} messages are there twice")
        if topic == PLAIN and len(ours) != len(bodies):
            found.append(f"{topic}: {len(bodies) - len(ours)} messages of strangers")
        return found

    async def _beat(self) -> None:
        body = {"clientID": CLIENT, "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
        assert (await self.ask(ADMIN, RequestCode.HEART_BEAT, body=json.dumps(body).encode())).code == 0

    async def _send(self, account: tuple[str, str], topic: str, body: str, **properties: str) -> RemotingCommand:
        text = properties_text(UNIQ_KEY=body.replace(" ", "_"), **properties)
        flag = 4 if "TRAN_MSG" in properties else 0
        header = SendMessageRequestHeaderV2(GROUP, topic, "TBW102", 1, 0, flag, 1_700_000_000_000, 0, text)
        began = time.monotonic()
        answer = await self.ask(account, RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), body.encode())
        self.sends_ms.append((time.monotonic() - began) * 1000)
        return answer

    async def _plain(self) -> None:
        body = f"{self.token} {self._number}"
        waiting = {"DELAY": "1"} if self._number % 10 == 0 else {}
        self.plain[body] = -1
        self.plain[body] = (await self._send(BOB, PLAIN, body, **waiting)).code

    async def _transaction(self) -> None:
        """Sends a half message. Every third transaction is left to the broker's check; of the others, half commit."""
        body = f"{self.token} {self._number}"
        self.outcomes[body] = 8 if self._number % 2 else 12
        answer = await self._send(ADMIN, SHARED, body, TRAN_MSG="true", PGROUP=GROUP)
        assert answer.code == 0, answer
        host_and_offset = answer.ext_fields["msgId"]
        place = Place(int(answer.ext_fields["queueOffset"]), int(host_and_offset[-16:], 16), body.replace(" ", "_"))
        with self.places.open("a") as file:
            file.write(json.dumps(place) + "\n")
        if self._number % 3:
            await asyncio.sleep(0.05)
            await self._end(place, self.outcomes[body])

    async def _end(self, place: Place, outcome: int) -> None:
        fields = {"producerGroup": GROUP, "tranStateTableOffset": str(place.queue_offset), "msgId": place.key}
        fields |= {"commitLogOffset": str(place.physical_offset), "commitOrRollback": str(outcome)}
        fields |= {"fromTransactionCheck": "true", "transactionId": place.key}
        answer = await self.ask(ADMIN, RequestCode.END_TRANSACTION, fields)
        assert answer.code == 0, (place, answer.code, answer.remark)

    async def _asked(self, _address: str, command: RemotingCommand) -> None:
        fields = command.ext_fields
        key = fields["msgId"]
        outcome = self.outcomes[key.replace("_", " ")]
        await self._end(Place(int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"]), key), outcome)

    async def _bodies(self, account: tuple[str, str], topic: str, group: str) -> list[str]:
        found: list[str] = []
        offset = 0
        while True:
            header = PullMessageRequestHeader(group, topic, 0, offset, 32, 4, 0, 0, 0, "*", "TAG")
            answer = await self.ask(account, RequestCode.PULL_MESSAGE, header.to_ext_fields())
            if answer.code != 0:
                return found
            # The attacker may send bodies that say they are compressed, and are not.
            messages = decode_messages(answer.body, unpack=False)
            found += [bytes(message.body).decode("utf-8", "replace") for message in messages]
            offset = int(answer.ext_fields["nextBeginOffset"])


class Attacker:
    """Sends requests of every code, signed by the low account, and looks for the tenants' secret in all it gets."""

    def __init__(self, address: str, token: str, places: Path, seed: int) -> None:
        self._address, self._token, self._places = address, token.encode(), places
        self._random = Random(f"tenants {seed}")
        self._requests = Requests()
        self._known: list[list[Any]] = []
        self.codes: set[int] = set()
        self.sent = self.leaks = 0

    async def run(self, requests: int) -> None:
        """Sends the requests, and meanwhile, for at least ``LISTENING_S``, is a member of the tenants' group."""
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        listening = asyncio.ensure_future(self._listen(reader))
        body = {"clientID": "thief", "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
        heartbeat = RemotingCommand(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        writer.write(signed(heartbeat, ALICE).encode())
        ends = time.monotonic() + LISTENING_S
        await self._send(requests)
        await asyncio.sleep(ends - time.monotonic())
        writer.close()
        await listening

    async def _send(self, requests: int) -> None:
        while self.sent < requests:
            if self._places.exists():
                self._known = [json.loads(line) for line in self._places.read_text().splitlines()[-200:]]
            count = min(CONNECTIONS * PER_CONNECTION, requests - self.sent)
            shares = [count // CONNECTIONS] * CONNECTIONS
            shares[0] += count % CONNECTIONS
            await asyncio.gather(*(asyncio.wait_for(self._connection(share), 120) for share in shares if share))

    async def _connection(self, count: int) -> None:
        frames = b"".join(self._frame() for _ in range(count))
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        reading = asyncio.ensure_future(self._listen(reader))
        try:
            writer.write(frames)
            await writer.drain()
            writer.write_eof()
        except ConnectionError:
            pass  # a frame that is none ends the connection
        await reading
        writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        before = b""
        try:
            while heard := await reader.read(1 << 16):
                self.leaks += (before + heard).count(self._token)
                before = heard[-len(self._token) + 1 :]
        except ConnectionError:
            pass

    def _frame(self) -> bytes:
        random = self._random
        command = self._requests.draw(random) if random.random() < 0.5 else RemotingCommand(random.choice(CODES))
        if random.random() < 0.3:
            command.code = random.choice(CODES)
        for name in random.sample(FIELDS, 8) if random.random() < 0.7 else ():
            command.ext_fields[name] = random.choice(NAMES if random.random() < 0.8 else VALUES)
        if self._known and random.random() < 0.4:
            self._aim(command, random.choice(self._known))
        if random.random() < 0.3:
            command.body = self._body()
        command.flag &= 2  # no responses, which the broker ignores
        self.codes.add(command.code)
        self.sent += 1
        return signed(command, ALICE).encode()

    def _aim(self, command: RemotingCommand, known: list[Any]) -> None:
        """Names a message of a tenant, as its own producer would."""
        queue_offset, physical_offset, key = known
        command.ext_fields |= {"offset": str(physical_offset), "commitLogOffset": str(physical_offset), "msgId": key}
        command.ext_fields |= {"tranStateTableOffset": str(queue_offset), "transactionId": key, "producerGroup": GROUP}
        command.ext_fields |= {"commitOrRollback": self._random.choice(["8", "12"]), "fromTransactionCheck": "true"}
        if self._random.random() < 0.3:
            command.code = RequestCode.END_TRANSACTION

    def _body(self) -> bytes:
        choice = self._random.choice
        queues = [{"topic": choice(NAMES), "brokerName": "siege", "queueId": 0}]
        subscriptions = [{"topic": choice(NAMES), "subString": "*", "subVersion": 1}]
        consumer = {"groupName": choice(["GA", "GB"]), "subscriptionDataSet": subscriptions}
        body: dict[str, Any] = {"clientID": choice([CLIENT, "thief"]), "clientId": CLIENT, "mqSet": queues}
        body |= {"consumerGroup": choice(["GA", "GB"]), "topic": choice(NAMES), "group": choice(NAMES)}
        body |= {"producerDataSet": [{"groupName": GROUP}], "consumerDataSet": choice([[], [consumer]])}
        return json.dumps(body | {"acks": [{"c": choice(["GA", "GB"]), "t": choice(NAMES)}]}).encode()


class Result(NamedTuple):
    """One run, as it is printed."""

    requests: int
    codes: int
    tenants: int
    p999_ms: float
    turn_ms: float
    leaks: int
    problems: list[str]


async def played(folder: Path, requests: int, seed: int, quiet_s: float) -> Result:
    """Runs the tenants, with an attacker in a process of its own if ``requests`` is not 0."""
    token, places = f"secret-{seed}-of-the-tenants", folder / "places"
    async with Target(folder, guarded=True) as target:
        ledger = Ledger(target.addresses.broker, token, places)
        await ledger.begin()
        heard = {"sent": 0, "codes": 0, "leaks": 0}
        sending = asyncio.ensure_future(ledger.run(quiet_s if not requests else 1e9))
        if requests:
            words = ["-m", "tests.fuzz.tenants", "--attack", ledger.address, token, str(places)]
            words += ["--requests", str(requests), "--seed", str(seed)]
            attacker = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
            done = asyncio.ensure_future(attacker.communicate())
            await asyncio.wait({sending, done}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                attacker.kill()
                sending.result()
            heard = json.loads((await done)[0])
            ledger.ends = True
            await sending
        else:
            await sending
        turn_s, _ = await target.longest_turn_s()
        problems = await ledger.problems()
        await ledger.close()
        assert not target.ended
    ordered = sorted(ledger.sends_ms)
    p999_ms = ordered[min(len(ordered) - 1, len(ordered) * 999 // 1000)]
    return Result(heard["sent"], heard["codes"], len(ordered), p999_ms, turn_s * 1000, heard["leaks"], problems)


async def attacked(address: str, token: str, places: str, requests: int, seed: int) -> None:
    """The attacker's process."""
    attacker = Attacker(address, token, Path(places), seed)
    await attacker.run(requests)
    print(json.dumps({"sent": attacker.sent, "codes": len(attacker.codes), "leaks": attacker.leaks}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.tenants", description="Fuzzes beside tenants.")
    parser.add_argument("--requests", type=int, default=1_000_000, help="number of the attacker's requests")
    parser.add_argument("--seed", type=int, default=1, help="seed of the attacker")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        asyncio.run(attacked(*options.attack, options.requests, options.seed))
        return 0
    print(f"{'run':<14} {'requests':>9} {'codes':>6} {'sends':>7} {'p99.9 ms':>9} {'longest turn ms':>16}")
    wrong: list[str] = []
    for name, requests in (("without fuzzer", 0), ("with fuzzer", options.requests)):
        with tempfile.TemporaryDirectory(prefix="rucola-tenants-") as folder:
            it = asyncio.run(played(Path(folder), requests, options.seed, 20.0))
        figures = f"{it.requests:>9} {it.codes:>6} {it.tenants:>7} {it.p999_ms:>9.1f} {it.turn_ms:>16.1f}"
        print(f"{name:<14} {figures}", flush=True)
        wrong += it.problems + ([f"{it.leaks} secrets were sent to the attacker"] if it.leaks else [])
    print("\n".join(wrong) or "nothing of the tenants was lost, changed or read by the attacker")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
