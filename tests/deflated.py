"""The compressed registration of 5.x brokers (request 103). Rucola reads it and never sends it."""

from __future__ import annotations

import zlib
from struct import Struct

from rucola.common.topic_config import TopicConfig
from rucola.protocol import fastjson
from rucola.protocol.bodies.registration import RegisterBrokerBody

_INT32 = Struct(">i")


def deflated(body: RegisterBrokerBody) -> bytes:
    """The body with an empty list of static topic mappings."""
    wrapper = body.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table.values()
    parts = [_sized(fastjson.dumps(wrapper.data_version.to_dict())), _INT32.pack(len(topics))]
    parts += [_sized(_topic_text(topic).encode()) for topic in topics]
    parts += [_sized(fastjson.dumps(body.filter_server_list)), _INT32.pack(0)]
    return zlib.compress(b"".join(parts))


def _sized(text: bytes) -> bytes:
    return _INT32.pack(len(text)) + text


def _topic_text(topic: TopicConfig) -> str:
    numbers = f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {int(topic.perm)}"
    return f"{numbers} {topic.topic_filter_type.name} {fastjson.dumps(dict(topic.attributes)).decode()}"
