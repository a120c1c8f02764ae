"""Repeats recorded sequences of requests with our servers, and compares each response with the recorded one.

Each request is sent, and each response awaited, in the recorded order, so that causes come before effects.
Values that differ from run to run (offsets in the log, opaque numbers of the server, pop times) are copied into the
requests from responses of this run. Waiting times of the recording are shortened.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from tests.golden.shapes import assert_same_shape, shape
from tests.unit.protocol.golden import Recorded, frames, records, texts

from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.signature import ACCESS_KEY, SIGNATURE, legacy_signature

PATIENCE_S = 60.0
AGAIN_S = 30.0
HOLD_MS = "150"
LONGER_HOLD_MS = "3000"
"""Milliseconds for which a pull without a result is held while other connections send; otherwise ``HOLD_MS``."""
PACED = ("_timer_delay", "_delay_level")
"""Scenarios with delayed messages; the order in which these messages arrive is not compared."""
POLL_MS = 2000
SEND, SEND_V2, SEND_BATCH, PULL, LITE_PULL, QUERY, VIEW, OFFSET = 10, 310, 320, 11, 361, 12, 33, 14
SEND_BACK, END_TRANSACTION, CHECK_TRANSACTION, ROUTE = 36, 37, 39, 105
POP, ACK, CHANGE, BATCH_ACK = 200050, 200051, 200053, 200151
WITH_MESSAGES = {PULL, LITE_PULL, QUERY, VIEW, POP}
REFUSED = {1, 16}
"""Codes of a missing permission: RocketMQ's check of ``plain_acl.yml`` raises an error, which becomes code 1; Rucola
returns 16.
"""
OWN_WORDS = {1, 13, 16, 23, 209, 210}
"""Codes of refusals whose remarks are not compared, because clients decide by the code alone."""
NOTHING_SAID = "not set any response code"
"""The remark in RocketMQ's responses if the processor set neither code nor remark."""
TAKES_TIME = {PULL, LITE_PULL, QUERY, OFFSET}
OWN_PROPERTIES = {"__CRC32#", "TRANSACTION_CHECK_TIMES"}
"""Properties that our broker stores by default and RocketMQ's broker does not, or that depend on the time."""
ADDRESS = re.compile(r"/?\d+\.\d+\.\d+\.\d+(:\d+)?")
DELIVER_MS = re.compile(r"(?<=TIMER_DELIVER_MS\x01)\d+")
AHEAD_MS = 4000
NUMBER = re.compile(r"\d+")


@dataclass
class Conversation:
    """The replay of one recorded connection, with one of our servers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answers: dict[int, asyncio.Future[RemotingCommand]] = field(default_factory=lambda: defaultdict(asyncio.Future))
    asked: dict[int, asyncio.Queue[RemotingCommand]] = field(default_factory=lambda: defaultdict(asyncio.Queue))
    """Requests that the server sent, by code."""

    @classmethod
    async def begin(cls, address: str) -> Conversation:
        host, _, port = address.rpartition(":")
        conversation = cls(*await asyncio.open_connection(host, int(port)))
        conversation.listening = asyncio.create_task(conversation._listen())  # type: ignore[attr-defined]
        return conversation

    async def _listen(self) -> None:
        try:
            while True:
                head = await self.reader.readexactly(4)
                command = decode_frame(head + await self.reader.readexactly(int.from_bytes(head, "big")))
                if command.is_response:
                    self.answers[command.opaque].set_result(command)
                else:
                    self.asked[command.code].put_nowait(command)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    def say(self, command: RemotingCommand) -> None:
        self.writer.write(command.encode())

    def end(self) -> None:
        self.writer.close()
        self.listening.cancel()  # type: ignore[attr-defined]


class Replay:
    """The replay of one scenario.

    Attributes:
        problems: the differences, by the number of the recorded frame.
        compared: numbers of the responses and of the servers' requests that were compared.
    """

    def __init__(
        self,
        scenario: str,
        servers: dict[str, str],
        secret: str = "",
        asking: str = "client",
        left_out: Container[int] = (),
        before: Replay | None = None,
        only: int = 0,
    ) -> None:
        """Args:
        servers: addresses of ``namesrv`` and ``broker``.
        secret: key with which changed requests are signed again.
        asking: the side whose requests are sent, ``client`` or ``broker``.
        left_out: codes of requests that are not sent.
        before: an earlier scenario whose messages this one requests.
        only: number of the only request that is sent; 0 = all.
        """
        self.scenario = scenario
        self.problems: dict[int, list[str]] = defaultdict(list)
        self.compared: set[int] = set()
        self._servers, self._secret, self._asking, self._left_out = servers, secret, asking, left_out
        self._records = [
            record for record in records(scenario) if "n" in record and (not only or record["n"] in (only, only + 1))
        ]
        self._frames = {frame.record["n"]: frame for frame in frames(scenario)}
        self._frames |= {
            record["n"]: _filled(scenario, record)
            for record in self._records
            if "frame_head" in record and record["kind"] == "request"
        }
        self._conversations: dict[str, Conversation] = {}
        self._asked: dict[tuple[str, int], Recorded] = {}
        self._opaques: dict[tuple[str, int], int] = {}
        self._places: dict[int, int] = before._places if before else {}
        """Physical offset of a message in this run, by its offset in the recording."""
        self._halves: dict[str, tuple[str, str]] = before._halves if before else {}
        self._pops: dict[str, tuple[str, str]] = {}
        self._next_opaque = 1 << 24
        self._answered = {
            (record["conn"], record["opaque"]): record for record in self._records if record.get("kind") == "response"
        }

    def topics(self) -> list[TopicConfig]:
        """Returns the topics that existed before the recording: those with a route before the first send to them."""
        found: dict[str, TopicConfig] = {}
        made = {"TBW102"}
        asked: dict[tuple[str, int], str] = {}
        for record in self._records:
            fields = (record.get("header") or {}).get("extFields") or {}
            if record.get("kind") in ("request", "oneway"):
                if record["code"] in (SEND, SEND_V2, SEND_BATCH):
                    made.add(fields.get("b") or fields.get("topic"))
                elif record["code"] == ROUTE:
                    asked[record["conn"], record["opaque"]] = fields.get("topic", "")
            elif (record.get("conn"), record.get("opaque")) in asked:
                topic = asked[record["conn"], record["opaque"]]
                if record["code"] == 0 and topic and topic not in made:
                    queue: Any = fastjson.load_object(self._frames[record["n"]].body, topic)["queueDatas"]
                    (data,) = queue
                    found.setdefault(
                        topic, TopicConfig(topic, data["readQueueNums"], data["writeQueueNums"], data["perm"])
                    )
                made.add(topic) if record["code"] == 17 else None
        return list(found.values())

    async def run(self) -> None:
        """Repeats the conversation; a wrong response of our servers is noted and raises nothing."""
        self._began = time.monotonic() * 1000 - self._records[0]["t_ms"]
        try:
            for record in self._records:
                if not await self._step(record):
                    break
        finally:
            for conversation in self._conversations.values():
                conversation.end()

    async def _step(self, record: dict[str, Any]) -> bool:
        sender, _, receiver = record["dir"].partition("->")
        by_server = receiver == self._asking
        server, name = sender if by_server else receiver, record["conn"]
        if self._asking not in (sender, receiver) or name.startswith("b"):
            return True  # requests of clients that were connected before
        if "event" in record:
            if name in self._conversations and not by_server:
                self._conversations[name].end()
            return True
        if self._is_left_out(record):
            return True
        if name not in self._conversations:
            self._conversations[name] = await Conversation.begin(self._servers[server])
        conversation, frame = self._conversations[name], self._frames.get(record["n"])
        try:
            if by_server and record["kind"] == "response":
                answer = await self._wait(conversation.answers[record["opaque"]])
                if frame is not None:
                    request = self._asked[name, record["opaque"]]
                    answer = await self._again(conversation, request, frame, answer)
                    self._compare(request, frame, answer)
            elif by_server:
                request_of_ours = await self._wait(conversation.asked[record["code"]].get())
                self._take(record, request_of_ours)
            elif record["kind"] == "response":
                command = decode_frame(self._need(frame).frame)
                command.opaque = self._opaques[name, record["opaque"]]
                conversation.say(command)
            elif frame is not None:
                if self.scenario.endswith(PACED):
                    await asyncio.sleep((self._began + record["t_ms"] - time.monotonic() * 1000) / 1000)
                self._asked[name, record["opaque"]] = frame
                conversation.say(self._request(frame))
        except TimeoutError:
            self.problems[record["n"]].append("nothing came")
            return False
        return True

    def _is_left_out(self, record: dict[str, Any]) -> bool:
        code = record["request_code"] if record["kind"] == "response" else record["code"]
        return code in self._left_out

    @staticmethod
    def _need(frame: Recorded | None) -> Recorded:
        assert frame is not None
        return frame

    @staticmethod
    async def _wait(what: Any) -> RemotingCommand:
        return await asyncio.wait_for(what, PATIENCE_S)  # type: ignore[no-any-return]

    async def _again(
        self, conversation: Conversation, asked: Recorded, recorded: Recorded, answer: RemotingCommand
    ) -> RemotingCommand:
        """Returns the response to a request whose result takes time, such as a pull of delayed messages; the request is
        repeated until the response is as recorded. A pop is repeated that a busy machine has read more than half a
        second after it was made, which a broker refuses.
        """
        deadline = time.monotonic() + AGAIN_S
        while _came_late(answer.remark) and not _came_late(recorded.record["header"].get("remark")):
            if time.monotonic() > deadline:
                break
            answer = await self._repeated(conversation, asked)
        takes_time = asked.record["code"] in TAKES_TIME and not self.scenario.startswith("mqadmin_")
        while takes_time and recorded.record["code"] == 0 and time.monotonic() < deadline:
            here = {_identity(message) for message in decode_messages(answer.body)} if answer.code == 0 else set()
            wanted = {_identity(message) for message in decode_messages(recorded.body)}
            if answer.code == 0 and (wanted <= here or self.scenario.endswith(PACED)):
                break
            await asyncio.sleep(0.1)
            answer = await self._repeated(conversation, asked)
        return answer

    async def _repeated(self, conversation: Conversation, asked: Recorded) -> RemotingCommand:
        command = self._request(asked)
        command.opaque = self._next_opaque = self._next_opaque + 1
        conversation.say(command)
        return await self._wait(conversation.answers[command.opaque])

    def _request(self, recorded: Recorded) -> RemotingCommand:
        """Returns the recorded request, with values from responses of this run."""
        command = decode_frame(recorded.frame)
        fields, before = command.ext_fields, dict(command.ext_fields)
        if command.code in (PULL, LITE_PULL) and self._was_in_vain(recorded):
            fields["suspendTimeoutMillis"] = HOLD_MS if self._was_alone(recorded) else LONGER_HOLD_MS
        if command.code == QUERY:
            fields |= {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
        if command.code in (VIEW, SEND_BACK) and self._stands(fields.get("offset", "")):
            fields["offset"] = str(self._places[int(fields["offset"])])
        if command.code == END_TRANSACTION and fields.get("msgId") in self._halves:
            fields["commitLogOffset"], fields["tranStateTableOffset"] = self._halves[fields["msgId"]]
        elif command.code == END_TRANSACTION and self._stands(fields.get("commitLogOffset", "")):
            fields["commitLogOffset"] = str(self._places[int(fields["commitLogOffset"])])
        if command.code == SEND_V2 and fields.get("e") == "-1":  # the client chose the queue at random
            answer = self._answered[recorded.record["conn"], recorded.record["opaque"]]
            fields["e"] = (answer["header"].get("extFields") or {}).get("queueId", "-1")
        if command.code == SEND_V2 and "TIMER_DELIVER_MS" in fields.get("i", ""):
            fields["i"] = DELIVER_MS.sub(lambda found: self._moved(int(found[0]), int(fields["g"])), fields["i"])
        self._pop_request(recorded, command)
        if SIGNATURE in fields and fields != before and self._secret:
            assert ACCESS_KEY in fields
            signature = legacy_signature(self._secret.encode(), fields, command.body, command.version)
            fields[SIGNATURE] = signature.decode()
        return command

    @staticmethod
    def _moved(due_ms: int, born_ms: int) -> str:
        """Returns a due time that is as long after now as the recorded due time was after the recorded send. A due time
        in the future is moved ``AHEAD_MS`` later, so that it is still in the future when the request is sent.
        """
        ahead_ms = due_ms - born_ms
        return str(int(time.time() * 1000) + ahead_ms + (AHEAD_MS if ahead_ms > 0 else 0))

    def _stands(self, place: str) -> bool:
        return place.isdigit() and int(place) in self._places

    def _was_alone(self, recorded: Recorded) -> bool:
        start, place = recorded.record["n"], (recorded.record["conn"], recorded.record["opaque"])
        between = range(start, self._answered[place]["n"])
        return not any(record["n"] in between and record.get("code") == SEND_V2 for record in self._records)

    def _was_in_vain(self, recorded: Recorded) -> bool:
        answer = self._answered.get((recorded.record["conn"], recorded.record["opaque"]))
        return answer is not None and answer["code"] != 0

    def _pop_request(self, recorded: Recorded, command: RemotingCommand) -> None:
        fields = command.ext_fields
        if command.code == POP:
            if int(fields["bornTime"]) > 1:
                fields["bornTime"] = str(int(time.time() * 1000))
            if self._was_in_vain(recorded):
                fields["pollTime"] = str(min(int(fields["pollTime"]), POLL_MS))
        if "extraInfo" in fields:
            words = fields["extraInfo"].split(" ")
            words[1], words[3] = self._pops.get(words[1], (words[1], words[3]))
            fields["extraInfo"] = " ".join(words)
        if command.code == CHANGE:
            fields["invisibleTime"] = "1000"
        if command.code == BATCH_ACK:
            body: Any = fastjson.loads(command.body)
            for ack in body["acks"]:
                popped, queue = self._pops.get(str(ack["pt"]), (str(ack["pt"]), str(ack["rq"])))
                ack["pt"], ack["rq"] = int(popped), int(queue)
            command.body = fastjson.dumps(body)

    def _take(self, record: dict[str, Any], ours: RemotingCommand) -> None:
        """Compares a request of our server with the recorded request that it corresponds to."""
        self._opaques[record["conn"], record["opaque"]] = ours.opaque
        self.compared.add(record["n"])
        problems = self.problems[record["n"]]
        theirs = texts(record["header"].get("extFields"))
        if ours.ext_fields.keys() != theirs.keys():
            problems.append(f"fields {sorted(ours.ext_fields)}, recorded {sorted(theirs)}")
        if bool(ours.body) != bool(record["body_len"]):
            problems.append(f"{len(ours.body)} bytes of body, recorded {record['body_len']}")
        if ours.is_oneway != (record["kind"] == "oneway"):
            problems.append(f"oneway {ours.is_oneway}")
        if record["code"] == CHECK_TRANSACTION:
            fields = ours.ext_fields
            self._halves[fields["msgId"]] = fields["commitLogOffset"], fields["tranStateTableOffset"]

    def _compare(self, asked: Recorded, recorded: Recorded, ours: RemotingCommand) -> None:
        theirs = decode_frame(recorded.frame)
        self.compared.add(recorded.record["n"])
        problems = self.problems[recorded.record["n"]]
        if asked.record["code"] == OFFSET and ours.code != theirs.code and self.scenario.endswith(PACED):
            return  # the client may ask whether a delayed message has come
        if ours.code != theirs.code and {ours.code, theirs.code} != REFUSED:
            problems.append(f"code {ours.code} ({ours.remark[:150]}), recorded {theirs.code}")
            return
        if ours.ext_fields.keys() != theirs.ext_fields.keys():
            problems.append(f"fields {sorted(ours.ext_fields)}, recorded {sorted(theirs.ext_fields)}")
        if bool(ours.body) != bool(theirs.body):
            problems.append(f"{len(ours.body)} bytes of body, recorded {len(theirs.body)}")
        elif theirs.body and asked.record["code"] in WITH_MESSAGES:
            self._compare_messages(ours.body, theirs.body, problems)
        elif theirs.body:
            try:
                assert_same_shape(*(shape(_document(body)) for body in (ours.body, theirs.body)))
            except (AssertionError, FormatError) as error:
                problems.append(f"body {error} {bytes(ours.body[:300])!r}, recorded {theirs.body[:300]!r}")
        if theirs.code not in OWN_WORDS and not _same_words(ours.remark, theirs.remark):
            problems.append(f"remark {ours.remark!r}, recorded {theirs.remark!r}")
        self._learn(theirs, ours)

    def _compare_messages(self, ours: bytes, theirs: bytes, problems: list[str]) -> None:
        found = {_identity(message): message for message in decode_messages(ours)}
        for message in decode_messages(theirs):
            same = found.get(_identity(message))
            if same is None and self.scenario.endswith(PACED):
                continue
            if same is None:
                problems.append(f"no message {_identity(message)}, but {list(found)}")
                continue
            self._places[message.physical_offset] = same.physical_offset
            names = (same.properties.keys() ^ message.properties.keys()) - OWN_PROPERTIES
            if names:
                problems.append(f"properties {sorted(names)} on one side only")
            if same.sys_flag != message.sys_flag or same.reconsume_times != message.reconsume_times:
                problems.append(f"flags of {_identity(message)}")
            if "POP_CK" in message.properties:
                words, mine = (one.properties["POP_CK"].split(" ") for one in (message, same))
                self._pops[words[1]] = mine[1], mine[3]

    def _learn(self, theirs: RemotingCommand, ours: RemotingCommand) -> None:
        fields = ours.ext_fields
        if "msgId" in fields and "msgId" in theirs.ext_fields:
            ids = (theirs.ext_fields["msgId"].split(","), fields["msgId"].split(","))
            for recorded_id, own_id in zip(*ids, strict=False):
                self._places[int(recorded_id[-16:], 16)] = int(own_id[-16:], 16)
            if "transactionId" in fields:
                place = str(int(fields["msgId"][-16:], 16)) if "," not in fields["msgId"] else ""
                self._halves[fields["transactionId"]] = place, fields["queueOffset"]
        if fields.get("popTime", "0") != "0":
            self._pops[theirs.ext_fields["popTime"]] = fields["popTime"], fields.get("reviveQid", "0")


def _same_words(ours: str, theirs: str) -> bool:
    """Whether two texts are equal except for addresses and numbers; texts with Java exceptions count as equal."""
    if theirs == NOTHING_SAID or "Exception" in theirs:
        return True
    plain = [NUMBER.sub("0", ADDRESS.sub("0", text)).split() for text in (ours, theirs)]
    return plain[0] == plain[1]


def _filled(scenario: str, record: dict[str, Any]) -> Recorded:
    """Completes a request of which only the beginning was recorded: the rest of its body repeats the same byte."""
    start, whole = base64.b64decode(record["body"]), base64.b64decode(record["frame_head"])
    assert len(set(start)) == 1
    return Recorded(scenario, record, whole + start[:1] * record["body_len"])


def _document(body: bytes) -> Any:
    """Returns the body as values; None if it is not JSON."""
    return fastjson.loads(body) if body[:1] in (b"{", b"[") else None


def _identity(message: Any) -> tuple[str, bytes]:
    return message.topic, message.body


def _came_late(remark: str | None) -> bool:
    return "pop message is timeout too much" in (remark or "")
