"""What the official proxy 5.5.0 asked its broker and told its clients, and what our door does of the same."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.proxy.lite_doors import LiteDoor, frame_of, lite_door, recorded

from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.protocol.bodies.lite import LiteSubscriptionAction, LiteSubscriptionCtlRequestBody
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers.lite import PopLiteMessageResponseHeader
from rucola.proxy import messages
from rucola.proxy.names import is_lite_topic
from rucola.proxy.popped import Fate, ReceiveTerms
from rucola.proxy.popped_lite import popped_lite_messages
from rucola.proxy.receipt import ReceiptHandle

SCENARIOS = (
    "subscribe",
    "python",
    "dead",
    "quota",
    "exclusive",
    "wildcard",
    "reconnect",
    "suspend",
    "invalid",
    "restart",
)
TERMS = ReceiveTerms("agents", "broker-a", frozenset(), 100)
BETTER_COUNTS = {
    ("dead", "always fails", 2),
    ("dead", "behind it", 2),
    ("suspend", "again and again", 4),
    ("reconnect", "before", 2),
}
"""Deliveries, in batches with a new message, that the official proxy calls the first: scenario, body, our attempt."""
OTHER_CODES = {
    ("PARTIAL_REMOVE", "", 50001, 20000),
    ("COMPLETE_ADD", "", 50001, 20000),
    ("9", "a", 50001, 40000),
}
"""Answers that differ, see ``lite.md`` 9: action, names, the official code, ours."""


def code_of(view: dict[str, Any]) -> int:
    code: int = getattr(messages, view["status"]["code"])
    return code


@pytest.mark.parametrize("kind", ["file", "rocksdb"])
def test_messages_as_the_official_proxy_delivers_them(kind: str) -> None:
    compared, better = 0, set()
    for scenario in SCENARIOS:
        delivered: dict[str, bytes] = {}
        found = {}
        for one in recorded(kind, scenario, "200070", "delivery_attempt"):
            if (
                one.get("request_code") == RequestCode.POP_LITE_MESSAGE
                and one["dir"] == "broker->proxy"
                and not one["code"]
            ):
                command = frame_of(one)
                header = PopLiteMessageResponseHeader.from_ext_fields(command.ext_fields)
                for message in popped_lite_messages(header, command.body, TERMS):
                    assert message.fate is Fate.DELIVER
                    found[message.handle.rpartition(" ")[0]] = message.response
            elif one.get("method") == "ReceiveMessage" and "message" in one.get("view", ()):
                data = base64.b64decode(one["message"])
                delivered[one["view"]["message"]["system_properties"]["receipt_handle"]] = data
        for handle, data in delivered.items():
            if handle not in found:
                continue  # popped before the recording of the scenario began
            theirs, ours = (messages.ReceiveMessageResponse.FromString(text).message for text in (data, found[handle]))
            compared += 1
            system = ours.system_properties
            assert ReceiptHandle.decode(system.receipt_handle).lite_topic == system.lite_topic
            system.receipt_handle = handle
            key = scenario, ours.body.decode(), system.delivery_attempt
            if theirs.system_properties.delivery_attempt == 1 and key in BETTER_COUNTS:
                better.add(key)
                system.delivery_attempt = 1
            assert ours == theirs, (scenario, handle)
    assert compared > 100 and len(better) >= 3


def syncs(kind: str, scenario: str) -> Iterator[tuple[str, Any, bytes | None, tuple[int, str], int]]:
    """Client id and request of each SyncLiteSubscription; what the official proxy asked its broker, None if it did not;
    the broker's answer; and what the client was told.
    """
    calls: dict[int, list[Any]] = {}
    asked: dict[tuple[str, int], int] = {}
    for one in recorded(kind, scenario, "SyncLiteSubscription", "200071"):
        if one.get("method") == "SyncLiteSubscription":
            call = calls.setdefault(one["call"], ["", None, None, (0, ""), None])
            if one["kind"] == "call":
                call[0] = one["client"]
            elif one["kind"] == "request":
                call[1] = messages.SyncLiteSubscriptionRequest.FromString(base64.b64decode(one["message"]))
            elif one["kind"] == "response":
                call[4] = code_of(one["view"])
        elif one.get("dir") == "proxy->broker" and one["code"] == RequestCode.LITE_SUBSCRIPTION_CTL:
            body = frame_of(one).body
            (entry,) = json.loads(body)["subscriptionSet"]
            for number, call in calls.items():
                if call[1] is not None and call[2] is call[4] is None and call[0] == entry["clientId"]:
                    call[2] = body
                    asked[one["conn"], one["opaque"]] = number
                    break
        elif one.get("request_code") == RequestCode.LITE_SUBSCRIPTION_CTL and (one["conn"], one["opaque"]) in asked:
            calls[asked[one["conn"], one["opaque"]]][3] = one["code"], one["header"].get("remark") or ""
    for client, request, body, answer, told in calls.values():
        if request is not None and told is not None:
            yield client, request, body, answer, told


GROUPS: dict[str, dict[str, str]] = {
    "gateway": {},
    "owner": {"lite.sub.model": "Exclusive"},
    "resetting": {"lite.sub.model": "Exclusive"},
    "all": {"lite.sub.wildcard": "true"},
    "small": {"lite.sub.client.quota": "2"},
    "failing": {},
    "failing-in-order": {},
}


async def prepared(door: LiteDoor) -> None:
    for name, attributes in GROUPS.items():
        door.brokers.lite_group(name, attributes=attributes)
    door.brokers.lite_group("brief-group", "brief")
    door.brokers.groups["ordinary"] = SubscriptionGroupConfig("ordinary")
    for name in ("brief", "plain"):
        door.brokers.topic_is(name, "LITE" if name == "brief" else "")


@pytest.mark.parametrize("kind", ["file", "rocksdb"])
def test_subscriptions_as_the_official_proxy_hands_them_on(kind: str) -> None:
    async def play() -> None:
        compared = 0
        async with lite_door() as door:
            await prepared(door)
            for scenario in SCENARIOS:
                clients: dict[str, Any] = {}
                for client_id, request, body, (code, remark), told in syncs(kind, scenario):
                    if client_id not in clients:
                        clients[client_id] = await door.client(f"{scenario}-{client_id}")
                    door.broker.codes.clear()
                    if code:
                        door.broker.codes[RequestCode.LITE_SUBSCRIPTION_CTL] = code, remark
                    answer = (await clients[client_id].call("SyncLiteSubscription", request)).status.code
                    names = " ".join(request.lite_topic_set)
                    action = dict(enumerate(LiteSubscriptionAction)).get(request.action, str(request.action))
                    if answer != told:
                        assert (action, names, told, answer) in OTHER_CODES, (scenario, request)
                        door.broker.changes()
                        continue
                    compared += 1
                    ours = door.broker.changes()
                    if body is None:
                        assert not ours, (scenario, request)
                        continue
                    (theirs,) = LiteSubscriptionCtlRequestBody.decode(body).subscription_set
                    theirs.client_id = f"{scenario}-{theirs.client_id}"
                    theirs.lite_topic_set = frozenset(filter(is_lite_topic, theirs.lite_topic_set or ()))
                    (entry,) = ours
                    entry.lite_topic_set = entry.lite_topic_set or frozenset()
                    assert entry == theirs, (scenario, request)
                    await asyncio.sleep(0)
        assert compared > 80

    run(play())
