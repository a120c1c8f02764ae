"""The RocketMQ for tests (``RocketMQ``), used through clients as in users' tests."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rucola import Message, MessageExt, Producer, PullConsumer
from rucola.client.admin import ORDER_TOPIC_CONFIG, AdminClient
from rucola.common.key_builder import dlq_topic
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.errors import BrokerError, ConfigError, OptionsError
from rucola.protocol.headers.client import ConsumerSendMsgBackRequestHeader
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import RemotingClient
from rucola.remoting.consumer_api import ConsumerApi
from rucola.sync import Producer as BlockingProducer
from rucola.sync import PullConsumer as BlockingPullConsumer
from rucola.testing.rocketmq import RocketMQ

_SENDER = """
import os, sys
from rucola import Message
from rucola.sync import Producer
with Producer("elsewhere", os.environ["NAMESRV_ADDR"]) as producer:
    producer.send(Message("orders", b"from another process"))
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        yield servers


def _send(servers: RocketMQ, topic: str, *bodies: bytes) -> None:
    with BlockingProducer("pg", servers.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def _bodies(servers: RocketMQ, topic: str) -> list[bytes]:
    return [message.body for message in servers.messages(topic)]


def test_the_second_one_is_ready_within_three_tenths_of_a_second_of_processor_time(shared: RocketMQ) -> None:
    before = time.process_time()
    with RocketMQ() as servers:
        assert time.process_time() - before < 0.3
        assert servers.broker != shared.broker


def test_messages_come_in_the_order_they_were_stored(shared: RocketMQ) -> None:
    bodies = [b"%d" % number for number in range(70)]
    _send(shared, "ordered", *bodies)
    assert _bodies(shared, "ordered") == bodies
    assert len({message.queue_id for message in shared.messages("ordered")}) > 1


@pytest.mark.parametrize("look", [RocketMQ.messages, RocketMQ.delayed], ids=["messages", "delayed"])
def test_a_wrong_name_of_a_topic_fails_the_test(
    shared: RocketMQ, look: Callable[[RocketMQ, str], list[MessageExt]]
) -> None:
    shared.create_topic("known")
    _send(shared, "stored", b"x")
    assert look(shared, "known") == []
    with pytest.raises(AssertionError, match=r"^there is no topic unknwon; topics with messages: .*stored") as caught:
        look(shared, "unknwon")
    assert "SCHEDULE" not in str(caught.value), "topics that only the broker uses help nobody"


def test_topics_of_a_group_exist_with_the_group(shared: RocketMQ) -> None:
    shared.create_group("failers")
    for topic in ("%RETRY%failers", "%RETRY%failers_orders", "%DLQ%failers"):
        assert shared.messages(topic) == []
    for topic in ("%RETRY%typo", "%DLQ%typo", "failers"):
        with pytest.raises(AssertionError, match=f"there is no topic {topic}; "):
            shared.messages(topic)


@pytest.mark.parametrize("look", [RocketMQ.retries, RocketMQ.dead_letters, RocketMQ.consumers])
def test_a_wrong_name_of_a_group_fails_the_test(
    shared: RocketMQ, look: Callable[[RocketMQ, str], list[object]]
) -> None:
    shared.create_group("known")
    assert look(shared, "known") == []
    with pytest.raises(AssertionError, match=r"^there is no group unknwon; groups: .*known$") as caught:
        look(shared, "unknwon")
    assert "CID_" not in str(caught.value), "groups that only the broker uses help nobody"


@pytest.mark.parametrize("look", [RocketMQ.retries, RocketMQ.dead_letters, RocketMQ.exhaust_retries])
def test_a_wait_for_a_group_that_is_not_there_says_so(
    shared: RocketMQ, look: Callable[[RocketMQ, str, int, float], list[object]]
) -> None:
    with pytest.raises(AssertionError, match=r"after 0 s .*not 1; there is no group unknwon; groups: "):
        look(shared, "unknwon", 1, 0)


def test_progress_in_what_does_not_exist_is_no_progress(shared: RocketMQ) -> None:
    shared.create_topic("idle")
    shared.create_group("idlers")
    shared.wait_for_progress("idlers", "idle", 0)
    with pytest.raises(AssertionError, match=r"has not consumed all of topic ilde; there is no topic ilde; topics "):
        shared.wait_for_progress("idlers", "ilde", 0)
    with pytest.raises(AssertionError, match=r"not consumed all of topic idle; there is no group ilders; groups: "):
        shared.wait_for_progress("ilders", "idle", 0)


def test_a_failed_wait_shows_the_line_of_the_test_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_messages(servers):\n    servers.messages('typo')\n\n"
        "def test_wait(servers):\n    servers.wait_for_messages('typo', 1, timeout=0)\n\n"
        "def test_fault(servers):\n    servers.faults.drop('send').wait(timeout=0)\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom rucola.testing.rocketmq import RocketMQ\n\n"
        "@pytest.fixture(scope='session')\ndef servers():\n    with RocketMQ() as servers:\n        yield servers\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    places = re.findall(r"^(\S+\.py):(\d+): in", ran.stdout, re.MULTILINE)
    assert places == [("test_it.py", "2"), ("test_it.py", "5"), ("test_it.py", "8")], ran.stdout


def test_asyncio_test_uses_it(shared: RocketMQ) -> None:
    async def work() -> list[bytes]:
        async with Producer("pg", shared.namesrv) as producer, PullConsumer("cg", shared.namesrv) as consumer:
            waiting = asyncio.create_task(asyncio.to_thread(shared.wait_for_messages, "loop", 1))
            await producer.send(Message("loop", b"awaited"))
            await waiting
            queues = await consumer.message_queues("loop")
            return [message.body for queue in queues for message in (await consumer.pull(queue, 0)).messages]

    assert asyncio.run(work()) == [b"awaited"]


def test_wait_on_an_event_loop_is_refused(shared: RocketMQ) -> None:
    async def work() -> None:
        shared.wait_for_messages("loop", 1)

    with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(rocketmq\.wait_for_messages"):
        asyncio.run(work())


def test_another_process_finds_it_in_its_environment(shared: RocketMQ) -> None:
    subprocess.run([sys.executable, "-c", _SENDER], env={**os.environ, **shared.env}, check=True, timeout=60)
    assert _bodies(shared, "orders") == [b"from another process"]


def test_wait_ends_with_the_message(shared: RocketMQ) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(shared.wait_for_messages, "awaited", 3, 20)
        _send(shared, "awaited", b"a", b"b")
        assert not waiting.done()
        _send(shared, "awaited", b"c")
        assert [message.body for message in waiting.result()] == [b"a", b"b", b"c"]


def test_wait_that_ends_without_says_what_is_there(shared: RocketMQ) -> None:
    _send(shared, "few", b"a")
    with pytest.raises(AssertionError, match=r"after 0 s topic few has 1 messages, not 2$"):
        shared.wait_for_messages("few", 2, 0)
    with pytest.raises(
        AssertionError, match=r"topic fwe has 0 messages, not 2; there is no topic fwe; topics with messages: .*few"
    ):
        shared.wait_for_messages("fwe", 2, 0)


def test_wait_for_progress_ends_with_the_commit(shared: RocketMQ) -> None:
    shared.create_topic("consumed", queues=1)
    _send(shared, "consumed", b"a", b"b")
    with pytest.raises(AssertionError, match=r"group cg has not consumed all of topic consumed .*queue 0: 2\)"):
        shared.wait_for_progress("cg", "consumed", 0)
    with ThreadPoolExecutor(1) as threads, BlockingPullConsumer("cg", shared.namesrv) as consumer:
        waiting = threads.submit(shared.wait_for_progress, "cg", "consumed", 20)
        (queue,) = consumer.message_queues("consumed")
        consumer.commit(queue, 2)
        waiting.result()


def test_dead_letters_of_a_group(shared: RocketMQ) -> None:
    shared.create_group("failing", retry_max_times=0)
    assert shared.dead_letters("failing") == []
    _send(shared, "work", b"poison")
    (message,) = shared.messages("work")

    async def give_back() -> None:
        client = RemotingClient()
        header = ConsumerSendMsgBackRequestHeader(message.physical_offset, "failing", 0, max_reconsume_times=0)
        await ConsumerApi(client).send_back(shared.broker, header, 60_000)  # the usual 3 s may pass on a busy machine
        await client.close()

    asyncio.run(give_back())
    (letter,) = shared.dead_letters("failing", count=1)
    assert (letter.body, letter.topic) == (b"poison", dlq_topic("failing"))


def test_topic_has_its_queues_type_and_order(shared: RocketMQ) -> None:
    shared.create_topic("first_in_first_out", queues=3, order=True, type="FIFO")
    with BlockingPullConsumer("cg", shared.namesrv) as consumer:
        assert len(consumer.message_queues("first_in_first_out")) == 3

    async def look() -> tuple[str | None, str]:
        async with AdminClient(shared.namesrv) as admin:
            config = await admin.api.topic_config(shared.broker, "first_in_first_out")
            order = await admin.api.kv_config(shared.namesrv, ORDER_TOPIC_CONFIG, "first_in_first_out")
            return order, config.attributes["message.type"]

    order, message_type = asyncio.run(look())
    assert message_type == "FIFO"
    assert order is not None and order.endswith(":3")
    with pytest.raises(BrokerError, match=r"value is not in set: .*FIFO"):
        shared.create_topic("first_in_first_out", type="LIFO")


def test_restart_keeps_addresses_and_messages() -> None:
    with RocketMQ() as servers, BlockingProducer("pg", servers.namesrv) as producer:
        producer.send(Message("kept", b"before"))
        addresses = servers.namesrv, servers.broker
        servers.restart()
        assert (servers.namesrv, servers.broker) == addresses
        producer.send(Message("kept", b"after"))
        assert _bodies(servers, "kept") == [b"before", b"after"]


def test_kill_leaves_an_unclean_store_with_every_message() -> None:
    with RocketMQ() as servers, BlockingProducer("pg", servers.namesrv) as producer:
        bodies = [b"%d" % number for number in range(50)]
        for body in bodies:
            producer.send(Message("kept", body))
        servers.kill()
        assert (Path(servers.store) / "abort").exists()
        servers.start()
        assert _bodies(servers, "kept") == bodies
        producer.send(Message("kept", b"after"))
        servers.stop()
        assert not (Path(servers.store) / "abort").exists()


def test_kill_forgets_progress_that_was_not_written() -> None:
    with RocketMQ({"flushConsumerOffsetInterval": "600000"}) as servers:
        servers.create_topic("consumed", queues=1)
        _send(servers, "consumed", b"a")
        with BlockingPullConsumer("cg", servers.namesrv) as consumer:
            (queue,) = consumer.message_queues("consumed")
            consumer.commit(queue, 1)
            servers.wait_for_progress("cg", "consumed")
        servers.kill()
        servers.start()
        with pytest.raises(AssertionError, match="has not consumed"):
            servers.wait_for_progress("cg", "consumed", 0)


def test_wait_goes_on_over_a_kill() -> None:
    with RocketMQ() as servers, ThreadPoolExecutor(1) as threads:
        _send(servers, "kept", b"before")
        waiting = threads.submit(servers.wait_for_messages, "kept", 2, 20)
        servers.kill()
        servers.start()
        _send(servers, "kept", b"after")
        assert [message.body for message in waiting.result()] == [b"before", b"after"]


def test_calls_that_need_a_broker_fail_while_it_is_away() -> None:
    with RocketMQ() as servers:
        with pytest.raises(RuntimeError, match="the broker is running"):
            servers.start()
        servers.stop()
        for call in (servers.stop, servers.kill, lambda: servers.messages("t"), lambda: servers.create_topic("t")):
            with pytest.raises(RuntimeError, match="the broker is not running"):
                call()
        with pytest.raises(AssertionError, match="the broker is not running"):
            servers.wait_for_messages("t", 1, 0)


def test_nothing_is_left_behind() -> None:
    with RocketMQ() as servers:
        directory = Path(servers.store).parent
        assert directory.exists()
    assert not directory.exists()


def test_unknown_option_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises((ConfigError, OptionsError), match="enablePropertyFiltre"):
        RocketMQ({"enablePropertyFiltre": "true"})
    assert list(tmp_path.iterdir()) == []


def test_a_parent_of_lite_topics_and_its_groups_are_made_by_one_call() -> None:
    with RocketMQ() as servers:
        servers.create_lite_parent("agents", "gateway", "audit", ttl_minutes=60, exclusive=True)
        servers.create_lite_parent("jobs", "all", wildcard=True)
        with BlockingProducer("pg", servers.namesrv) as producer:
            for body in (b"one", b"two"):
                producer.send(Message("agents", body, lite_topic="session-1"))
        stored = servers.messages("agents")
        assert [(one.body, one.lite_topic, one.lite_offset) for one in stored] == [
            (b"one", "session-1", 0),
            (b"two", "session-1", 1),
        ]
        groups = asyncio.run(_groups(servers.broker))
        exclusive = {"lite.bind.topic": "agents", "lite.sub.model": "Exclusive"}
        assert groups["gateway"].attributes == groups["audit"].attributes == exclusive
        assert groups["all"].attributes == {"lite.bind.topic": "jobs", "lite.sub.wildcard": "true"}
        with pytest.raises(BrokerError, match="43200"):
            servers.create_lite_parent("agents", ttl_minutes=43_201)


async def _groups(address: str) -> dict[str, SubscriptionGroupConfig]:
    client = RemotingClient()
    try:
        return await AdminApi(client).all_groups(address)
    finally:
        await client.close()
