"""Attacks by producers: topics created by sends to them, transactions, delays, batches, large and small messages."""

from __future__ import annotations

import base64
import itertools
import json
import random
import time
from collections.abc import Iterator

from tests.attack.guarded import ALICE
from tests.attack.siege.consumers import filled
from tests.attack.siege.peer import Peer, attack, properties, request, request_of_alice, send_request, storm
from tests.attack.siege.target import Addresses

from rucola.protocol.codes import RequestCode as Code
from rucola.protocol.command import RemotingCommand
from rucola.protocol.signature import ACCESS_KEY, SIGN_NONCE, SIGN_TIME, SIGNATURE_V2, v2_signature


@attack("producers", "each send makes a topic")
async def topics_by_send(addresses: Addresses) -> None:
    await storm(addresses.broker, (send_request(f"Made{number}") for number in itertools.count()), connections=1)


@attack("producers", "83,000 half messages that nobody ends")
async def half_messages(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in range(83_000):
            text = properties(TRAN_MSG="true", PGROUP="halves", UNIQ_KEY=f"half-{number}")
            yield send_request("HalfT", b"x" * 100, text, sys_flag=4)

    await storm(addresses.broker, frames())


@attack("producers", "ends of transactions that never began")
async def made_up_transactions(addresses: Addresses) -> None:
    await filled(addresses, "T", 100)

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield request(
                Code.END_TRANSACTION, producerGroup="pg", tranStateTableOffset=number, commitLogOffset=number % 20_000,
                commitOrRollback=8, fromTransactionCheck=False,
            )  # fmt: skip

    await storm(addresses.broker, frames())


@attack("producers", "100,000 delayed messages that are all due in the same second, 5 s from now")
async def one_instant(addresses: Addresses) -> None:
    due = time.time_ns() // 1_000_000 + 5_000
    levels = send_request("DelayT", b"x", properties(DELAY=2, UNIQ_KEY="d"))
    timers = send_request("TimerT", b"x", properties(TIMER_DELIVER_MS=due, UNIQ_KEY="t"))
    await storm(addresses.broker, itertools.islice(itertools.cycle([levels, timers]), 100_000))


@attack("producers", "recalls of messages that are not there")
async def recalls(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            due = time.time_ns() // 1_000_000 + 60_000
            handle = base64.urlsafe_b64encode(f"v1 T siege {due} ID{number}".encode()).decode()
            yield request(Code.RECALL_MESSAGE, producerGroup="pg", topic="T", recallHandle=handle)

    await filled(addresses, "T", 1)
    await storm(addresses.broker, frames())


@attack("producers", "batches of 100,000 messages of one byte")
async def batch_bombs(addresses: Addresses) -> None:
    member = (4 + 4 + 4 + 4 + 4 + 1 + 2).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x" + bytes(2)
    await storm(addresses.broker, itertools.repeat(send_request("BatchT", member * 100_000, batch=True)))


@attack("producers", "messages of 4 MB at full speed")
async def large_messages(addresses: Addresses) -> None:
    await storm(addresses.broker, itertools.repeat(send_request("LargeT", bytes(4_000_000))), connections=4)


@attack("producers", "sends that want no answer at full speed")
async def oneway_sends(addresses: Addresses) -> None:
    frame = send_request("OnewayT", b"x", oneway=True)
    await storm(addresses.broker, itertools.repeat(frame * 100))


@attack("producers", "messages of 30,000 bytes of properties and 500 keys each")
async def many_keys(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield send_request("KeysT", b"x", properties(KEYS=" ".join(f"k{number}-{n}" for n in range(500))))

    await storm(addresses.broker, frames())


@attack("producers", "wrong signatures for an account that exists", guarded=True)
async def wrong_signatures(addresses: Addresses) -> None:
    frame = RemotingCommand(
        Code.GET_MAX_OFFSET,
        ext_fields={"topic": "A", "queueId": "0", ACCESS_KEY: ALICE[0], "Signature": "AAAAAAAAAAAAAAAAAAAAAAAAAAA="},
    ).encode()
    await storm(addresses.broker, itertools.repeat(frame))


@attack("producers", "requests of a new session each, with signatures of the second version", guarded=True)
async def new_sessions(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        while True:
            fields = {"topic": "A", "queueId": "0", ACCESS_KEY: ALICE[0], SIGN_TIME: str(time.time_ns() // 1_000_000)}
            fields[SIGN_NONCE] = f"session-{random.getrandbits(64):020d}.1"
            fields[SIGNATURE_V2] = v2_signature(ALICE[1].encode(), Code.GET_MAX_OFFSET, fields, b"").decode()
            yield RemotingCommand(Code.GET_MAX_OFFSET, ext_fields=fields).encode()

    await storm(addresses.broker, frames())


@attack("producers", "an account with little to say names 20,000 producer groups", guarded=True)
async def groups_of_an_account(addresses: Addresses) -> None:
    for number in itertools.count():
        peer = await Peer.to(addresses.broker)
        peer.take_answers()
        for part in range(20):
            groups = [{"groupName": f"pg{number}-{part}-{n}"} for n in range(1000)]
            body = json.dumps({"clientID": f"c{number}", "producerDataSet": groups}).encode()
            await peer.put(request_of_alice(Code.HEART_BEAT, body))
        peer.close()
