"""The promises that a broker made to producers and consumers, and whether it keeps them after a crash.

* A popped message is never delivered again if its acknowledgement got a response under SYNC_FLUSH or is on the disk.
  Every other popped message is delivered again, but not before the end of its invisible time.
* A delayed message that is on the disk is delivered, and never before its time.
* A half message has one outcome: its producer's decision. Without a decision, the broker gives the message up, and
  moves it to TRANS_CHECK_MAX_TIME_TOPIC.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random

from tests.crash.broker_life import (
    GROUP,
    LEVELS_MS,
    ORDERED,
    PLAIN,
    POPPED,
    PRODUCERS,
    STEP_MS,
    SUCCESS,
    BrokerLife,
)

from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.common.message import MessageExt
from rucola.formats.message import decode_message, decode_messages
from rucola.formats.message_id import offset_message_id
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.testing.clock import ManualClock
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.store_life import ROOT, empty_disk

COMMIT, ROLLBACK, UNDECIDED = 8, 12, 0
_EVERYTHING = 1 << 62
_LONG_MS = 200_000
_TURNS = 24
_HALF_FLAG = 4
_GIVEN_UP = TRANS_CHECK_MAX_TIME_TOPIC.encode()


class Broken(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if a promise was broken."""


@dataclass
class Promises:
    """The broker's promises, by key of the message. A promise depends on a record; *end* is the physical offset after
    that record.

    Attributes:
        durable: everything below this offset is on the disk.
        sent: ends of messages to be popped.
        acknowledged: ends of the acknowledgements of popped messages.
        answered: keys whose acknowledgement got a response from a SYNC_FLUSH broker.
        hidden: end of the latest change of invisible time, and the time before which the message must not come.
        due_ms: end and due time of a delayed message.
        halves: ends of half messages.
        decided: end of the producer's decision, and the decision.
        put_back: ends of half messages that were given up, and then resumed by ``RESUME_CHECK_HALF_MESSAGE``.
    """

    durable: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    answered: dict[str, bool] = field(default_factory=dict)
    hidden: dict[str, tuple[int, int]] = field(default_factory=dict)
    due_ms: dict[str, tuple[int, int]] = field(default_factory=dict)
    halves: dict[str, int] = field(default_factory=dict)
    decided: dict[str, tuple[int, int]] = field(default_factory=dict)
    put_back: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Promises:
        """Returns a copy, which later promises do not change."""
        tables = {each.name: dict(getattr(self, each.name)) for each in fields(self) if each.name != "durable"}
        return replace(self, **tables)


@dataclass(frozen=True)
class Popped:
    """A message that a consumer has popped."""

    key: str
    topic: str
    queue_offset: int
    receipt: str


@dataclass
class Came:
    """The times in ms at which consumers got messages after a crash, by key of the message."""

    popped: dict[str, list[int]] = field(default_factory=dict)
    plain: dict[str, list[int]] = field(default_factory=dict)
    given_up: dict[str, list[int]] = field(default_factory=dict)


class Clients(BrokerLife):
    """A broker with producers and consumers, which record the broker's promises."""

    def __init__(self, disk: SimulatedDisk, sync: bool, clock: ManualClock, promises: Promises) -> None:
        super().__init__(disk, sync, clock)
        self.promises = promises
        self._asked: dict[int, tuple[str, ...]] = {}

    def open(self) -> None:
        """See ``BrokerLife``. Forgets open requests, because the earlier process will never respond to them."""
        self._asked = {}
        super().open()

    @property
    def end(self) -> int:
        """End of the log."""
        return self.broker.store.max_offset

    # -- producers ----------------------------------------------------------------------------------------------------

    def send(self, key: str, topic: str = POPPED, **properties: object) -> None:
        """Sends a message; with ``DELAY`` or ``TIMER_DELIVER_MS`` it arrives later."""
        self._send(key, topic, 0, properties)
        self._note_delay(key, properties)
        if key not in self.promises.due_ms:
            self.promises.sent[key] = self.end

    def prepare(self, key: str, **properties: object) -> MessageExt:
        """Sends a half message; returns the data that its producer needs for its decision."""
        begin = self.end
        number = self._send(key, PLAIN, _HALF_FLAG, {"TRAN_MSG": "true", "PGROUP": PRODUCERS, **properties})
        self.promises.halves[key] = self.end
        self.flush()  # producers decide only after the response
        assert (answer := self.answer(number)) is not None and answer.code == SUCCESS
        record = self.broker.store.message_at(begin)
        assert record is not None
        return decode_message(record)

    def decide(self, half: MessageExt, outcome: int) -> None:
        """Commits or rolls back without waiting for a response, as clients do."""
        key = half.properties["UNIQ_KEY"]
        self._end(key, half.queue_offset, half.physical_offset, outcome, False)
        self.promises.decided[key] = self.end, outcome
        if outcome == COMMIT:
            self._note_delay(key, half.properties)

    def put_back(self, key: str) -> None:
        """Resumes a half message that was given up; its producer commits it when the broker checks again."""
        (given_up,) = [found for found in self.messages(_GIVEN_UP) if found.properties["UNIQ_KEY"] == key]
        host = self.broker.store.store_host
        names = {"topic": TRANS_CHECK_MAX_TIME_TOPIC, "msgId": offset_message_id(host, given_up.physical_offset)}
        self.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, names, oneway=True)
        self.promises.put_back[key] = self.end
        self.promises.decided[key] = self.end, COMMIT

    def answer_checks(self) -> None:
        """Responds to transaction checks: producers repeat their decisions, even decisions that they sent before."""
        questions, self.connection.questions = self.connection.questions, []
        for question in questions:
            names = question.ext_fields
            key = names["transactionId"]
            _, outcome = self.promises.decided.get(key, (0, UNDECIDED))
            self._end(key, int(names["tranStateTableOffset"]), int(names["commitLogOffset"]), outcome, True)

    def _note_delay(self, key: str, properties: Mapping[str, object]) -> None:
        """Records the due time that ``properties`` request for the message, which is the last record of the log."""
        if "DELAY" in properties:
            delay_ms = LEVELS_MS[int(str(properties["DELAY"])) - 1]
            self.promises.due_ms[key] = self.end, self.clock.wall_ms() + delay_ms
        elif "TIMER_DELIVER_MS" in properties:
            self.promises.due_ms[key] = self.end, int(str(properties["TIMER_DELIVER_MS"]))

    def _send(self, key: str, topic: str, flag: int, properties: dict[str, object]) -> int:
        text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": key, **properties}.items())
        header = SendMessageRequestHeaderV2(PRODUCERS, topic, "TBW102", 1, 0, flag, self.clock.wall_ms(), 0, text)
        return self.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), key.encode())

    def _end(self, key: str, queue_offset: int, physical_offset: int, outcome: int, asked: bool) -> None:
        names = {
            "producerGroup": PRODUCERS,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": outcome,
            "fromTransactionCheck": str(asked).lower(),
            "transactionId": key,
        }
        self.ask(RequestCode.END_TRANSACTION, names, oneway=True)

    # -- consumers ----------------------------------------------------------------------------------------------------

    def pop(self, invisible_ms: int, topic: str = POPPED, maximum: int = 32) -> list[Popped]:
        """Pops all messages that are available now."""
        now_ms = self.clock.wall_ms()
        names = {"consumerGroup": GROUP, "topic": topic, "queueId": 0, "maxMsgNums": maximum, "initMode": 0}
        names |= {"invisibleTime": invisible_ms, "pollTime": 0, "bornTime": now_ms}
        if topic == ORDERED:
            names["order"] = "true"
        answer = self.answer(self.ask(RequestCode.POP_MESSAGE, names))
        assert answer is not None
        if answer.code != SUCCESS:
            return []
        found, said = [], answer.ext_fields
        start = dict(entry.rsplit(" ", 1) for entry in said["startOffsetInfo"].split(";")).get("0 0")
        head = f"{start} {said['popTime']} {said['invisibleTime']} {said['reviveQid']} 0 b 0"
        for message in decode_messages(answer.body):
            again = message.properties.get("POP_CK")
            lies_in = topic if again is None else f"%RETRY%{GROUP}_{topic}"
            receipt = again or f"{head} {message.queue_offset}"
            key = message.properties["UNIQ_KEY"]
            found.append(Popped(key, lies_in, message.queue_offset, receipt))
            if topic != ORDERED:
                self.promises.hidden[key] = self.end, now_ms + invisible_ms
        return found

    def ack(self, popped: Popped) -> None:
        """Acknowledges one message."""
        self._asked[self.ask(RequestCode.ACK_MESSAGE, self._names(popped))] = (popped.key,)
        self._note_acks([popped.key])

    def batch_ack(self, popped: Sequence[Popped]) -> None:
        """Acknowledges several messages of one pop."""
        start, pop_ms, invisible_ms, revive_queue, kind = popped[0].receipt.split(" ")[:5]
        bits = sum(1 << each.queue_offset - int(start) for each in popped)
        batch = {"c": GROUP, "t": POPPED, "r": kind, "so": int(start), "q": 0, "rq": int(revive_queue)}
        batch |= {
            "pt": int(pop_ms),
            "it": int(invisible_ms),
            "b": base64.b64encode(bits.to_bytes(4, "little")).decode(),
        }
        body = fastjson.dumps({"brokerName": "b", "acks": [batch]})
        self._asked[self.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)] = tuple(each.key for each in popped)
        self._note_acks([each.key for each in popped])

    def _note_acks(self, keys: Sequence[str]) -> None:
        """Records acknowledgements; those that the broker collects do not survive a power cut before they are in the
        log.
        """
        self.promises.acknowledged |= dict.fromkeys(keys, _EVERYTHING if self.collects else self.end)

    @property
    def collects(self) -> bool:
        """Whether the broker has acknowledgements that are not in the log yet."""
        acks = getattr(self.broker.services.pops.started, "_acks", None)
        return acks is not None and len(acks) > 0

    def hide(self, popped: Popped, invisible_ms: int) -> Popped:
        """Changes the invisible time of a message; returns the message with its next receipt."""
        now_ms = self.clock.wall_ms()
        number = self.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self._names(popped) | {"invisibleTime": invisible_ms}
        )
        _, before_ms = self.promises.hidden[popped.key]
        # Until the change is on the disk, the message may come again at either time, so the earlier one counts.
        self.promises.hidden[popped.key] = self.end, min(before_ms, now_ms + invisible_ms)
        self.flush()
        answer = self.answer(number)
        assert answer is not None and answer.code == SUCCESS, answer
        if self.broker.store.flushed_offset >= self.end:
            self.promises.hidden[popped.key] = self.end, now_ms + invisible_ms
        said = answer.ext_fields
        words = [str(popped.queue_offset), said["popTime"], said["invisibleTime"], *popped.receipt.split(" ")[3:]]
        return replace(popped, receipt=" ".join(words))

    def _names(self, popped: Popped) -> dict[str, object]:
        names = {"consumerGroup": GROUP, "topic": popped.topic, "queueId": 0}
        return names | {"extraInfo": popped.receipt, "offset": popped.queue_offset}

    def note(self) -> None:
        """Records the responses that have come, and how much is on the disk."""
        self.promises.durable = max(self.promises.durable, self.broker.store.flushed_offset)
        acks = getattr(self.broker.services.pops.started, "_acks", None)
        if acks is not None and acks._works and not len(acks):
            stored = {key: self.end for key, end in self.promises.acknowledged.items() if end == _EVERYTHING}
            self.promises.acknowledged |= stored
        for number, keys in list(self._asked.items()):
            answer = self.answer(number)
            if answer is not None:
                del self._asked[number]
                if answer.code != SUCCESS:
                    raise Broken(f"acknowledgement of {keys} refused: {answer.remark}")
                if self.config.sync_flush:
                    self.promises.answered |= dict.fromkeys(keys, True)


class BrokerExplorer:
    """Simulates a power failure at each step of a workload.

    Args:
        sample: number of random crash states at each step, in addition to the fixed ones.
        every: simulate a failure only at every n-th step.
        quick: simulate failures only before the log is synced, and after an outcome.

    Attributes:
        states: number of recovered disks.
        steps: number of calls to the disk.
    """

    def __init__(self, sync: bool, seed: int, sample: int, every: int = 1, quick: bool = False) -> None:
        self.states = self.steps = 0
        self._every = every
        self._quick = quick
        self._sync = sync
        self._random = Random(seed)
        self._sample = sample
        self._seen: set[int] = set()

    def clients(self) -> Clients:
        """Returns clients with an empty disk; from now on, each call to this disk counts as a step."""
        clients = Clients(empty_disk(), self._sync, ManualClock(1_700_000_000_000), Promises())
        clients.disk.observer = lambda kind, path: self._at_step(clients, kind, path)
        return clients

    def _at_step(self, clients: Clients, kind: str, path: str) -> None:
        self.steps += 1
        if hasattr(clients, "broker"):
            clients.note()
        quick = path == ROOT or (kind == "sync" and "/commitlog/" in path)
        if self.steps % self._every or (self._quick and not quick):
            return
        for state in crash_states(clients.disk, self._random, self._sample, randoms=8):
            promises = clients.promises.copy()
            if state.choice == NOTHING_LOST:
                promises.durable = _EVERYTHING
            try:
                self._check(state, promises, clients.clock.wall_ms())
            except Exception as error:
                raise Broken(f"step {clients.disk.steps} ({kind} {path}), {state.choice}: {error!r}") from error

    def _check(self, state: CrashState, promises: Promises, now_ms: int) -> None:
        key = hash((tuple(state.image.items()), repr(promises), now_ms))
        if key in self._seen:
            return
        self._seen.add(key)
        self.states += 1
        check(promises, live_on(SimulatedDisk.of(state.image), self._sync, now_ms, promises))


def live_on(disk: SimulatedDisk, sync: bool, now_ms: int, promises: Promises) -> Came:
    """Starts a broker on ``disk`` and lets time pass, while consumers pop messages and producers respond to checks;
    returns the messages that consumers got.
    """
    clients = Clients(disk, sync, ManualClock(now_ms), promises.copy())
    came = Came()
    clients.open()
    clients.online()
    for _ in range(_TURNS):
        for topic in (POPPED, ORDERED):
            while popped := clients.pop(_LONG_MS, topic):
                for each in popped:
                    came.popped.setdefault(each.key, []).append(clients.clock.wall_ms())
        clients.check_transactions()
        clients.answer_checks()
        clients.turn(STEP_MS)
    for table, topic in ((came.plain, PLAIN.encode()), (came.given_up, _GIVEN_UP)):
        for message in clients.messages(topic):
            table.setdefault(message.properties["UNIQ_KEY"], []).append(message.store_timestamp_ms)
    return came


def check(promises: Promises, came: Came) -> None:
    """Compares the received messages with the promises.

    Raises:
        Broken: a promise was not kept.
    """
    for key, end in promises.sent.items():
        _check_popped(promises, key, end, came.popped.get(key, []))
    for key, (end, due_ms) in promises.due_ms.items():
        times_ms = came.plain.get(key, [])
        if any(time_ms < due_ms for time_ms in times_ms):
            raise Broken(f"{key} is due at {due_ms} and came at {times_ms}")
        if end <= promises.durable and not times_ms:
            raise Broken(f"{key} is due at {due_ms} and lost")
    for key, end in promises.halves.items():
        _check_half(promises, key, end, len(came.plain.get(key, [])), len(came.given_up.get(key, [])))


def _check_popped(promises: Promises, key: str, end: int, times_ms: list[int]) -> None:
    durable = promises.durable
    if key in promises.answered or promises.acknowledged.get(key, _EVERYTHING + 1) <= durable:
        if times_ms:
            raise Broken(f"{key} was acknowledged and came again at {times_ms}")
        return
    if end <= durable and not times_ms and key not in promises.acknowledged:
        raise Broken(f"{key} was not acknowledged and is lost")
    hidden_end, until_ms = promises.hidden.get(key, (0, 0))
    if hidden_end <= durable and (len(times_ms) > 1 or any(time_ms < until_ms for time_ms in times_ms)):
        raise Broken(f"{key} was hidden until {until_ms} and came at {times_ms}")


def _check_half(promises: Promises, key: str, end: int, committed: int, given_up: int) -> None:
    _, outcome = promises.decided.get(key, (0, UNDECIDED))
    if key in promises.due_ms:
        committed = min(committed, 1)  # a crash may deliver it twice
    if key in promises.put_back:
        ends = {(1, 1)} if promises.put_back[key] <= promises.durable else {(1, 1), (1, 0), (0, 1)}
        if (committed, given_up) not in ends:
            raise Broken(f"half message {key}, put back, was committed {committed} and given up {given_up} times")
        return
    wanted = (outcome == COMMIT, outcome == UNDECIDED)
    if (committed, given_up) != wanted and (end <= promises.durable or committed + given_up):
        raise Broken(f"half message {key}, decision {outcome}, was committed {committed} and given up {given_up} times")
