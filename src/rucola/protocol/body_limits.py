"""Size limits of request bodies: each limit is somewhat larger than the largest legitimate body.

A frame may be 16 MiB long. Parsing 16 MiB of JSON can take half a minute, so a body that exceeds its limit is refused
before it is parsed. Bodies with messages, and registrations of brokers, may be as long as a frame.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FRAME_BYTES_MAX

_KIB = 1024
_OTHERS = 64 * _KIB
_LIMITS: Mapping[int, int] = {
    # Messages: the store's options limit the size of these bodies.
    RequestCode.SEND_MESSAGE: FRAME_BYTES_MAX,
    RequestCode.SEND_MESSAGE_V2: FRAME_BYTES_MAX,
    RequestCode.SEND_BATCH_MESSAGE: FRAME_BYTES_MAX,
    RequestCode.SEND_REPLY_MESSAGE: FRAME_BYTES_MAX,
    RequestCode.SEND_REPLY_MESSAGE_V2: FRAME_BYTES_MAX,
    # A broker registers all its topics, 150 bytes each.
    RequestCode.REGISTER_BROKER: FRAME_BYTES_MAX,
    # All groups of a client with their subscriptions: 500 groups, or 10,000 tags.
    RequestCode.HEART_BEAT: 256 * _KIB,
    # An expression, escaped.
    RequestCode.CHECK_CLIENT_CONFIG: 128 * _KIB,
    # 4,000 queues, or acknowledgements of 4,000 messages.
    RequestCode.LOCK_BATCH_MQ: 256 * _KIB,
    RequestCode.UNLOCK_BATCH_MQ: 256 * _KIB,
    RequestCode.BATCH_ACK_MESSAGE: 256 * _KIB,
    # 10,000 names of lite topics, of 64 characters: the quota of a client plus what a proxy lets it exceed.
    RequestCode.LITE_SUBSCRIPTION_CTL: 1024 * _KIB,
    # 2,000 topics or groups; longer lists are sent in parts.
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: 512 * _KIB,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: 512 * _KIB,
}


def body_bytes_max(code: int) -> int:
    """Returns the size limit in bytes for the body of a request with ``code``; 64 KiB unless listed here."""
    return _LIMITS.get(code, _OTHERS)
