"""Requests for the name server's options (S-41), and for its lists of unit topics."""

from __future__ import annotations

import orjson
import pytest
from tests.unit.namesrv.test_namesrv import asking

from rucola.common.data_version import DataVersion
from rucola.common.java import parse_properties
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.registration import RegisterBrokerBody, TopicConfigSerializeWrapper
from rucola.remoting.config_processor import CONFIG_BYTES_MAX
from rucola.testing.event_loop import run_stepped


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=x", 16),
        (b"bindAddress=0.0.0.0", 16),
        (b"insecure=true", 16),
        (b"noSuchKey=1", 16),
        (b"scanNotActiveBrokerInterval=1000\nlistenPort=1", 16),
        (b"scanNotActiveBrokerInterval=0", 29),
        (b"scanNotActiveBrokerInterval=1000\\nlistenPort=1", 29),
        (b"scanNotActiveBrokerInterval=\xff", 29),
        (b"#" + b"x" * CONFIG_BYTES_MAX, 29),
        (b"scanNotActiveBrokerInterval=6000\n", 0),
        (b"", 0),
    ],
)
def test_s41_what_a_request_may_change(body: bytes, code: int) -> None:
    async def scene() -> None:
        async with asking() as asker:
            assert (await asker.ask(318, body)).code == code
            options = parse_properties(bytes((await asker.ask(319)).body).decode())
            assert options["scanNotActiveBrokerInterval"] == ("6000" if body and not code else "5000")
            assert (options["bindAddress"], options["insecure"]) == ("127.0.0.1", "false")

    run_stepped(scene())


def test_unit_topics() -> None:
    async def scene() -> None:
        async with asking() as asker:
            table = {f"T{flag}": TopicConfig(f"T{flag}", topic_sys_flag=flag) for flag in range(4)}
            await asker.register(RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(0, 5, 1))).encode())
            for code, topics in ((311, ["T1", "T3"]), (312, ["T2", "T3"]), (313, ["T2"])):
                assert orjson.loads((await asker.ask(code)).body)["topicList"] == topics

    run_stepped(scene())
