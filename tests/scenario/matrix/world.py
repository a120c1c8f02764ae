"""Name server, broker, producer and administrator of one cell, on the cell's loop in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.scenario.matrix.ledger import Ledger

from rucola import Message, MessageExt, MessageQueue, Producer, ProducerConfig
from rucola.client.admin import AdminClient
from rucola.client.config import ClientConfig
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import RucolaError
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.runtime import loop_watch
from rucola.testing.queue_checker import Outcome
from rucola.testing.servers import Servers

TOPIC, GROUP = "T", "G"
QUEUES = 2
ACCESS_KEY, SECRET = "the-application", "the-first-secret"
OTHER_SECRET = "the-second-secret"
ADMIN_KEY, ADMIN_SECRET = "the-administrator", "secret-of-the-administrator"
_ACCOUNTS = """accounts:
- accessKey: {admin}
  secretKey: {admin_secret}
  admin: true
- accessKey: {name}
  secretKey: {secret}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
"""
OPTIONS = {
    "recallMessageEnable": "true",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
}
"""Options of the broker."""
LITE_OPTIONS = {"enableLmq": "true", "enableMultiDispatch": "true"}
"""Further options of a broker that has lite topics."""
SENDING = {"send_msg_timeout_ms": 3_000, "retry_times_when_send_failed": 0}


class World:
    """The servers of a cell. Call ``open`` and ``close`` once each, on the loop.

    Args:
        clock: the loop's time in seconds.
        guarded: whether the broker asks for an account.
        lite: whether the topic is the parent of lite topics, to which the messages go in turn.

    Attributes:
        ledger: where sends are recorded.
        topic, group: the topic and the group of the cell.
        queues: number of the topic's queues.
        visible_s: when delayed messages are delivered, and the broker has asked for the outcome of transactions.
        commits_again: whether the broker may store a committed message of a transaction a second time.
    """

    visible_s = 130.0
    commits_again = False

    def __init__(self, clock: Callable[[], float], guarded: bool = False, lite: bool = False) -> None:
        self.clock = clock
        self.lite = lite
        self.ledger = Ledger(clock)
        self.guarded = guarded
        self.home = Path(tempfile.mkdtemp(prefix="rucola-matrix-"))
        self.servers: Servers
        self.topic, self.group = TOPIC, GROUP
        self.admin: AdminClient
        self.producer: Producer
        self._epoch = 0
        self._number = 0
        self._lock = threading.Lock()
        self.queues = QUEUES

    async def open(self) -> None:
        """Starts the servers, the producer and the administrator, and creates the topic."""
        await self.open_servers()
        account = {"access_key": ACCESS_KEY, "secret_key": SECRET} if self.guarded else {}
        admin = {"access_key": ADMIN_KEY, "secret_key": ADMIN_SECRET} if self.guarded else {}
        self.producer = Producer("P", self.namesrv, ProducerConfig(**SENDING, **(admin or account)))
        self.admin = AdminClient(self.namesrv, config=ClientConfig(**admin))
        await self.producer.start()
        await self.set_queues(QUEUES)

    async def open_servers(self) -> None:
        """Starts name server and broker."""
        options = OPTIONS | (LITE_OPTIONS if self.lite else {})
        if self.guarded:
            options |= {"aclEnable": "true", "rocketmqHome": str(self.home)}
            self.set_secret(SECRET)
        self.servers = Servers(options)
        await self.servers.open()

    def scaled(self, seconds: float) -> float:
        """How long the cell looks on while nothing shall happen."""
        return seconds

    async def leave(self) -> None:
        """Ends producer and administrator."""
        await self.producer.shutdown()
        await self.admin.close()

    async def close(self) -> None:
        """Ends the servers."""
        await self.servers.close()

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return self.servers.namesrv.address

    @property
    def broker_name(self) -> str:
        """Name of the broker."""
        return self.servers._config.broker_name

    def message_queues(self) -> list[MessageQueue]:
        """The topic's queues."""
        return [MessageQueue(self.topic, self.broker_name, number) for number in range(self.queues)]

    @property
    def lite_topics(self) -> list[str]:
        """The lite topics of the parent."""
        return [lite_topic(number) for number in range(QUEUES)]

    @property
    def cluster(self) -> str:
        """Name of the broker's cluster."""
        return self.servers._config.broker_cluster_name

    @property
    def broker(self) -> str:
        """Address of the broker."""
        return self.servers.address

    # -- sends

    def new_values(self, count: int) -> list[str]:
        """Values that no message has had."""
        with self._lock:
            self._number += count
            return [f"{self._epoch}.{number:04d}" for number in range(self._number - count, self._number)]

    def queue_for(self, value: str) -> MessageQueue:
        """The queue that a message with this value goes to: the queues in turn."""
        return MessageQueue(self.topic, self.broker_name, int(value.partition(".")[2]) % self.queues)

    def queue_name(self, value: str, queue_id: int) -> str:
        """The name of a queue, or lite topic, in the ledger. A topic that was created again has new queues."""
        epoch, _, number = value.partition(".")
        return f"{self.topic}.{epoch}.{int(number) % QUEUES if self.lite else queue_id}"

    async def send(self, count: int) -> list[str]:
        """Sends messages to the queues in turn; returns their values."""
        return [await self.send_one() for _ in range(count)]

    async def send_one(self) -> str:
        """Sends one message; returns its value."""
        [value] = self.new_values(1)
        queue = self.queue_for(value)
        began, outcome, offset = self.ledger.clock(), Outcome.UNKNOWN, None
        try:
            name = lite_topic(int(value.partition(".")[2]) % QUEUES) if self.lite else None
            message = Message(self.topic, value.encode(), lite_topic=name)
            offset = (await self.producer.send(message, None if self.lite else queue)).queue_offset
            outcome = Outcome.OK
        except RucolaError:
            pass
        self.ledger.sent(value, self.queue_name(value, queue.queue_id), offset, outcome, began)
        return value

    async def send_until_acknowledged(self, count: int, pause_s: float = 1.0, tries: int = 90) -> list[str]:
        """Sends until ``count`` messages were acknowledged; returns their values."""
        values: list[str] = []
        for _ in range(tries):
            value = await self.send_one()
            if value in self.ledger.acknowledged():
                values.append(value)
            else:
                await asyncio.sleep(pause_s)
            if len(values) == count:
                break
        return values

    # -- administration

    async def set_queues(self, count: int, perm: int = 6) -> None:
        """Creates the topic, or changes the number of its queues and its permissions."""
        self.queues = count = 1 if self.lite else count  # the parent's offsets then tell the order of its lite topics
        config = TopicConfig(self.topic, count, count, perm=perm)
        await self.admin.api.change_topic(self.broker, config, "+message.type=LITE" if self.lite else "")
        if self.lite:
            group = SubscriptionGroupConfig(self.group, attributes={"+lite.bind.topic": self.topic})
            await self.admin.api.change_group(self.broker, group)

    async def recreate_topic(self, pause_s: float) -> None:
        """Deletes the topic and creates it again."""
        await self.admin.delete_topic(self.topic, self.cluster)
        await asyncio.sleep(pause_s)
        self._epoch += 1
        await self.set_queues(self.queues)

    def set_secret(self, secret: str) -> None:
        """Changes the secret of the application's account."""
        path = self.home / "conf" / "plain_acl.yml"
        path.parent.mkdir(exist_ok=True)
        text = _ACCOUNTS.format(admin=ADMIN_KEY, admin_secret=ADMIN_SECRET, name=ACCESS_KEY, secret=secret)
        path.write_text(text)

    async def stop_broker(self) -> None:
        """Stops the broker cleanly."""
        await self.servers.stop()

    async def kill_broker(self) -> None:
        """Ends the broker as SIGKILL does."""
        await self.servers.kill()

    async def start_broker(self) -> None:
        """Starts the broker again."""
        await self.servers.start()

    async def stop_namesrv(self) -> None:
        """Ends the name server."""
        await self.servers.namesrv.shutdown()

    async def start_namesrv(self) -> None:
        """Starts a name server on the same port, which knows no broker until one registers."""
        port = int(self.namesrv.rpartition(":")[2])
        self.servers.namesrv = NameServer(NamesrvConfig(listen_port=port))
        await self.servers.namesrv.start()

    async def stored(self) -> list[MessageExt]:
        """Everything that consumers of the topic can get."""
        return self.servers.content.messages(self.topic)

    def connections(self) -> int:
        """Number of connections to the broker."""
        return self.servers._running().connections

    def committed(self) -> dict[str, int]:
        """The group's consumer offsets in the current topic, by the queue's name in the ledger."""
        offsets = self.servers._running().offsets
        found = {}
        for queue_id in range(self.queues):
            offset = offsets.query(self.group, self.topic, queue_id)
            if offset is not None:
                found[self.queue_name(f"{self._epoch}.", queue_id)] = offset
        return found


@contextmanager
def quiet_watch() -> Iterator[None]:
    """The broker's watch over long turns rests, since each of its ticks would be a jump of the virtual time."""
    before = loop_watch.PERIOD_S
    loop_watch.PERIOD_S = 10.0
    try:
        yield
    finally:
        loop_watch.PERIOD_S = before


def lite_topic(number: int) -> str:
    """The name of a lite topic."""
    return f"session-{number}"


def account_options(guarded: bool) -> dict[str, str]:
    """Options of a client of the application."""
    return {"access_key": ACCESS_KEY, "secret_key": SECRET} if guarded else {}
