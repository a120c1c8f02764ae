"""Hostile administration requests (``docs/security.md``); each of these tests fails without the check that it
covers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from tests.attack.guarded import ADMIN, ALICE, Guarded
from tests.brokers import Cluster, run
from tests.unit.broker.administered import administered

from rucola.broker.config import BrokerConfig
from rucola.broker.processor.broker_manage import ADMINISTRATORS_KEYS, CONFIG_BYTES_MAX, REMOTE_KEYS
from rucola.common.options import SECRET_SHOWN, change_options, option, options_of, show_options
from rucola.errors import ConfigError
from rucola.protocol.bodies.statistics import QueryConsumeQueueResponseBody
from rucola.protocol.command import RemotingCommand

CHANGE = 25


@pytest.mark.parametrize(
    "body",
    [
        "noSuchKey=1",
        "storePathRootDir=/etc",
        "brokerConfigPath=/etc/passwd",
        "rocketmqHome=$(id)",
        "filterServerNums=1\nrocketmqHome=-c \"id\"",
        "messageStorePlugIn=evil",
        "aclEnable=false",
        "insecure=true",
        "bindAddress=0.0.0.0",
        "namesrvAddr=evil:9876",
        "configBlackList=",
        "autoCreateTopicEnable=true",
        "longPollingEnable=false\nbindAddress=0.0.0.0",
        "longPollingEnable=false\\\nbindAddress=0.0.0.0\nx=y",
        "__class__=x",
        "=x",
    ],
)  # fmt: skip
def test_s41_what_a_request_may_not_change(body: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            before = show_options(cluster.broker.config)
            with caplog.at_level(logging.WARNING):
                answer = await cluster.ask(CHANGE, body=body.encode())
            assert answer.code == 16 and answer.remark.startswith("Can not update config in black list.")
            assert "change of an option refused" in caplog.text
            assert show_options(cluster.broker.config) == before

    run(scene())


@pytest.mark.parametrize(
    "body",
    [
        b"shortPollingTimeMills=0",
        b"shortPollingTimeMills=1e3",
        b"shortPollingTimeMills=$(reboot)",
        b"shortPollingTimeMills=1000\\nbindAddress=0.0.0.0",
        b"longPollingEnable=\\u0074rue\\u000a",
        b"longPollingEnable=yes",
        b"longPollingEnable=\\u12",
        b"longPollingEnable=\xff",
        b"longPollingEnable=false\nshortPollingTimeMills=-1",
        b"longPollingEnable=false\n#" + b"x" * CONFIG_BYTES_MAX,
    ],
)
def test_s41_values_that_are_not_allowed(body: bytes, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            before = show_options(cluster.broker.config)
            assert (await cluster.ask(CHANGE, body=body)).code == 29
            assert show_options(cluster.broker.config) == before

    run(scene())


def test_s41_what_a_request_may_change_takes_effect_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            version = orjson.loads((await cluster.ask(26)).ext_fields["version"])
            with caplog.at_level(logging.WARNING):
                assert (await cluster.ask(CHANGE, body=b"litePullMessageEnable=false\n")).code == 0
            record = next(
                record for record in caplog.records if vars(record)["rucola_event"] == "option changed by request"
            )
            fields = record.__dict__["rucola_fields"]
            assert (fields["key"], fields["before"], fields["after"]) == ("litePullMessageEnable", "true", "false")
            assert fields["peer"].startswith("127.0.0.1:")
            pull = cluster.pull_command()
            pull.code = 361
            assert (await cluster.client.invoke(cluster.broker.address, pull, 5000)).code == 16
            answer = await cluster.ask(26)
            assert b"\nlitePullMessageEnable=false\n" in bytes(answer.body)
            assert orjson.loads(answer.ext_fields["version"])["counter"] == version["counter"] + 1
            assert (await cluster.ask(CHANGE)).code == 0

    run(scene())


@pytest.mark.parametrize("key", sorted(ADMINISTRATORS_KEYS))
def test_s41_what_makes_the_broker_refuse_others_is_changed_by_administrators_only(tmp_path: Path, key: str) -> None:
    """Before the fix, everybody who could connect was able to make the broker answer consumers with SYSTEM_BUSY."""
    text = f"{key}={'true' if key.endswith('Enable') else '1'}".encode()

    async def scene() -> None:
        async with Cluster(tmp_path / "open") as cluster:
            before = show_options(cluster.broker.config)
            answer = await cluster.ask(CHANGE, body=b"longPollingEnable=false\n" + text)
            assert answer.code == 16 and "without access control" in answer.remark
            assert show_options(cluster.broker.config) == before
        async with Guarded(tmp_path / "guarded") as guarded:
            command = RemotingCommand(CHANGE, body=text)
            assert await guarded.code(ALICE, command) == 16
            assert await guarded.code(ADMIN, RemotingCommand(CHANGE, body=text)) == 0
            assert text.decode() in [f"{k}={v}" for k, v in show_options(guarded.broker.config).items()]

    run(scene())


def test_s41_every_changeable_option_is_a_number_or_a_switch_with_a_range() -> None:
    known = {entry.key: entry for entry in options_of(BrokerConfig)}
    for key in REMOTE_KEYS:
        entry = known[key]
        number = isinstance(entry.default, int) and entry.minimum is not None and entry.maximum is not None
        assert isinstance(entry.default, bool) or number
        assert not any(word in key.lower() for word in ("path", "addr", "host", "port", "acl", "auth", "tls", "key"))


@dataclass(frozen=True)
class _Some:
    size: int = option("size", 1, "A number.", minimum=1, maximum=9)
    name: str = option("name", "x", "A text.")


@dataclass(frozen=True)
class _Secrets:
    password: str = option("tls.server.keyPassword", "", "A secret.")
    user: str = option("initAuthenticationUser", "", "A secret.")
    key: str = option("secretKey", "", "A secret.")
    size: int = option("size", 1, "A number.")


def test_options_change_together_or_not_at_all() -> None:
    some = _Some()
    for values in ({"size": "2", "name2": "y"}, {"name": "y", "size": "10"}):
        with pytest.raises(ConfigError):
            change_options(some, values)
        assert some == _Some()
    assert change_options(some, {"size": "2", "name": "x"}) == {"size": ("1", "2")}
    assert some == _Some(2)


def test_s42_secrets_are_shown_to_nobody() -> None:
    assert show_options(_Secrets("a", "b", "c")) == {
        "tls.server.keyPassword": SECRET_SHOWN, "initAuthenticationUser": SECRET_SHOWN, "secretKey": SECRET_SHOWN,
        "size": "1",
    }  # fmt: skip
    assert show_options(_Secrets())["secretKey"] == ""


NAMES = ["a/../../x", "..", ".", "/abs", "C:\\x", "a\\b", "a\0b", "\u202ea", "x" * 128, " "]


@pytest.mark.parametrize("name", NAMES)
def test_s21_names_that_could_leave_the_store(name: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path / "store") as there:
            topic = {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                "topicFilterType": "SINGLE_TAG",
            }  # fmt: skip
            group = orjson.dumps({"groupName": name})
            await there.cluster.bodies("T_live")

            def files() -> set[Path]:
                """Returns the files of the store except timer files. The backup and the temporary file of a table count
                as the table.
                """
                found = (path for path in tmp_path.rglob("*") if "timer" not in path.name)
                return {path.with_suffix("") if path.suffix in {".bak", ".tmp"} else path for path in found}

            before = files()
            assert (await there.ask(17, **topic)).code == 29
            assert (await there.ask(18, orjson.dumps({"topicConfigList": [{"topicName": name}]}))).code == 29
            assert (await there.ask(215, topic=name)).code == 29
            assert (await there.ask(200, group)).code == 29
            assert (await there.ask(225, b'{"groupConfigList":[' + group + b"]}")).code == 29
            assert (await there.ask(314, srcGroup="G_live", destGroup=name, offline="true")).code == 29
            assert (await there.ask(353, group=name, topic="T", readable="false")).code == 29
            assert (await there.ask(321, topic=name, queueId=0, index=0, count=1)).code == 1
            assert files() == before

    run(scene())


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x", "TBW102", "broker-a"]
)
def test_s22_topics_of_the_system(topic: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            before = dict(cluster.broker.topics.table)
            assert (await cluster.ask(18, body=orjson.dumps({"topicConfigList": [{"topicName": topic}]}))).code == 29
            assert (await cluster.ask(215, {"topic": topic})).code == 29
            assert (await cluster.ask(316)).code == 0
            assert cluster.broker.topics.table == before

    run(scene())


def test_s26_numbers_out_of_range(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            unit = {"topic": "T_live", "queueId": 0, "index": 0, "count": 1}
            for wrong in ({"index": -1}, {"count": -1}, {"count": 1 << 31}, {"index": 1 << 63}):
                assert (await there.ask(321, **unit | wrong)).code in (1, 29)
            for queue_id in (-1, (1 << 31) - 1):
                assert (await there.ask(321, **unit | {"queueId": queue_id})).code == 1
            monster = await there.ask(321, **unit | {"count": (1 << 31) - 1})
            assert len(QueryConsumeQueueResponseBody.decode(monster.body).queue_data) == 4
            far = await there.ask(321, **unit | {"index": (1 << 63) - 1})
            assert QueryConsumeQueueResponseBody.decode(far.body).queue_data == []
            for config in ({"perm": 99}, {"readQueueNums": -1}, {"writeQueueNums": 1 << 20}):
                body = orjson.dumps({"topicConfigList": [{"topicName": "N", **config}]})
                assert (await there.ask(18, body)).code == 29
            for number in (-1, 1 << 20):
                body = orjson.dumps({"groupName": "N", "retryQueueNums": number})
                assert (await there.ask(200, body)).code == 29
            assert (await there.ask(309, consumerGroup="G_live", clientId="c", msgId="f" * 32)).code == 1

    run(scene())


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 5000,
        b'{"groupName":' * 5000,
        b'{"groupName":"g","retryQueueNums":' + b"9" * 5000 + b"}",
        b'{"groupName":"g","retryQueueNums":NaN}',
        b'{"groupConfigList":5,"topicConfigList":5}',
        b'{"groupConfigList":[5],"topicConfigList":[5]}',
    ],
)
@pytest.mark.parametrize("code", [18, 200, 225])
def test_s15_bodies_that_are_too_much(code: int, body: bytes, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            tables = dict(cluster.broker.topics.table), dict(cluster.broker.groups.table)
            answer = await cluster.ask(code, body=body)
            assert answer.code != 0 or b"Config" in body[:20]
            assert "Traceback" not in answer.remark and "rucola/" not in answer.remark
            assert (cluster.broker.topics.table, cluster.broker.groups.table) == tables

    run(scene())


def test_s16_class_hints_are_data(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            body = b'{"@type":"java.lang.Runtime","__class__":"os.system","groupName":"g"}'
            assert (await cluster.ask(200, body=body)).code == 0
            assert b"Runtime" not in (tmp_path / "config/subscriptionGroup.json").read_bytes()

    run(scene())


def test_s43_who_changes_something_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            with caplog.at_level(logging.INFO, "rucola.broker.requests"):
                await there.ask(222, topic="T_live", group="G_live", timestamp=-1, isForce="true")
                await there.ask(207, groupName="G_live")
                await there.ask(215, topic="T_live")
                await there.ask(215, topic="TBW102")
            lines = [
                record.__dict__["rucola_fields"]
                for record in caplog.records
                if vars(record)["rucola_event"] == "change asked for"
            ]
            assert all(line["peer"].startswith("127.0.0.1:") for line in lines)
            assert [(line["request"], line.get("topic"), line.get("groupName")) for line in lines] == [
                ("INVOKE_BROKER_TO_RESET_OFFSET", "T_live", None),
                ("DELETE_SUBSCRIPTIONGROUP", None, "G_live"),
                ("DELETE_TOPIC_IN_BROKER", "T_live", None),
                ("DELETE_TOPIC_IN_BROKER", "TBW102", None),
            ]

    run(scene())
