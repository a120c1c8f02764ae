"""A broker whose clock, disk and event loop are controlled by the test, which checks wake-ups to the millisecond.

The broker is real, and requests and responses are bytes; ``tests.crash.broker_life`` replaces sockets, threads and
time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.brokers import properties_text
from tests.crash.broker_life import BrokerLife, Connection

from rucola.formats.message_id import parse_offset_message_id
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.protocol.headers.transaction import EndTransactionRequestHeader
from rucola.testing.clock import ManualClock
from rucola.testing.simulated_disk import Image, SimulatedDisk
from rucola.testing.store_life import empty_disk

NOW_MS = 1_700_000_000_000
STEP_MS = 10
QUIET_STEPS = 50
"""After a step in which nothing happened, steps in which nothing is due are left out, but at most so many together: the
threads also work at intervals, which are not shorter.
"""


class Asked:
    """A request; ``answer`` is None until the response comes, and ``after_ms`` tells when it came."""

    def __init__(self, connection: Connection, opaque: int, at_ms: int) -> None:
        self._connection, self._opaque, self._at_ms = connection, opaque, at_ms
        self.after_ms: int | None = None

    @property
    def answer(self) -> RemotingCommand | None:
        return self._connection.answers.get(self._opaque)

    @property
    def code(self) -> int | None:
        return None if self.answer is None else self.answer.code

    def look(self, now_ms: int) -> None:
        if self.after_ms is None and self.answer is not None:
            self.after_ms = now_ms - self._at_ms


class SteppedBroker(BrokerLife):
    """A stepped broker with topic T, which has one queue; its periodic work runs too."""

    def __init__(self, sync_flush: bool = False, disk: SimulatedDisk | None = None, now_ms: int = NOW_MS) -> None:
        super().__init__(disk or empty_disk(), sync_flush, ManualClock(now_ms))
        self._asked: list[Asked] = []
        self._quiet_steps = 0
        self._number = 0
        self._serve()

    def _serve(self) -> None:
        self.disk.versions = False  # a test that cuts the power changes it
        self.open()
        self.broker._serving.work_periodically()
        self.broker.services.pops.start()

    @classmethod
    def on(cls, image: Image, now_ms: int) -> SteppedBroker:
        """A broker that starts after a power cut."""
        return cls(sync_flush=True, disk=SimulatedDisk.of(image), now_ms=now_ms)

    def restart(self) -> None:
        """Stops the broker cleanly and starts it again; every client has a new connection."""
        self._happen()
        asyncio.run(self.broker.shutdown())
        self._serve()

    def kill(self) -> None:
        """Ends the broker as SIGKILL would and starts it again."""
        self.disk = SimulatedDisk.of(self.disk.seen())
        self._serve()

    def connect(self) -> Connection:
        """Connects one more client."""
        return Connection(self.broker, self.loop)

    def request(
        self,
        code: int,
        fields: dict[str, object] | None = None,
        body: bytes = b"",
        connection: Connection | None = None,
    ) -> Asked:
        """Sends a request; returns when the broker has nothing left to do until time passes."""
        connection = connection or self.connection
        self._number += 1
        texts = {name: str(value) for name, value in (fields or {}).items()}
        asked = Asked(connection, self._number, self.clock.wall_ms())
        connection.receive(RemotingCommand(code, self._number, ext_fields=texts, body=body).encode())
        self._asked.append(asked)
        self._happen()
        return asked

    def send(self, topic: str = "T", body: bytes = b"body", queue_id: int = 0, **properties: str) -> Asked:
        text = properties_text(**{"UNIQ_KEY": "U", "WAIT": "true"} | properties)
        header = SendMessageRequestHeaderV2("pg", topic, "TBW102", 1, queue_id, 0, NOW_MS, 0, text)
        return self.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), body)

    def pull(
        self,
        queue_offset: int,
        timeout_ms: int = 15_000,
        topic: str = "T",
        group: str = "cg",
        expression: str = "*",
        connection: Connection | None = None,
        queue_id: int = 0,
    ) -> Asked:
        """Sends a pull that contains its own subscription and waits for up to ``timeout_ms``."""
        header = PullMessageRequestHeader(
            group, topic, queue_id, queue_offset, 32, 6, 0, timeout_ms, 0, expression, "TAG"
        )
        return self.request(RequestCode.PULL_MESSAGE, header.to_ext_fields(), connection=connection)

    def passes(self, milliseconds: int) -> None:
        """Lets time pass in small steps."""
        self._quiet_steps = QUIET_STEPS
        for _ in range(milliseconds // STEP_MS):
            self.clock.advance(STEP_MS)
            self._quiet_steps += 1
            if self._quiet_steps > QUIET_STEPS or self._is_due():
                self._happen()

    def _is_due(self) -> bool:
        if self.loop.is_due():
            return True
        allocates, flushes, writes = self._workers()
        return allocates.wanted or flushes.wanted or writes.wanted

    def _happen(self) -> None:
        ran, due = self.loop.ran, self._is_due()
        self.flush()
        self.loop.run()
        self._quiet_steps = QUIET_STEPS if due or self.loop.ran > ran or self._is_due() else 0
        now_ms = self.clock.wall_ms()
        for asked in self._asked:
            asked.look(now_ms)
        self._asked = [asked for asked in self._asked if asked.after_ms is None]

    def half(self, topic: str = "T", body: bytes = b"half", queue_id: int = 0, **properties: str) -> Asked:
        """Sends the half message of a transaction."""
        usual = {"UNIQ_KEY": f"half of {topic}", "WAIT": "true", "TRAN_MSG": "true", "PGROUP": "pg"}
        text = properties_text(**usual | properties)
        header = SendMessageRequestHeaderV2("pg", topic, "TBW102", 1, queue_id, 4, NOW_MS, 0, text)
        return self.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), body)

    def end(self, half: Asked, outcome: int) -> Asked:
        """Ends the transaction of a half message: 8 commits, 12 rolls back."""
        assert half.answer is not None
        fields = half.answer.ext_fields
        physical_offset = parse_offset_message_id(fields["msgId"]).physical_offset
        header = EndTransactionRequestHeader("pg", int(fields["queueOffset"]), physical_offset, outcome)
        header = replace(header, transaction_id=fields["transactionId"])
        return self.request(RequestCode.END_TRANSACTION, header.to_ext_fields())
