"""The official Python lite clients, told what to do line by line as ``LiteClient.java`` is: words separated by tabs,
one line for each answer. Argument: the gRPC address. The program is independent of Rucola.
"""

from __future__ import annotations

import sys
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    LitePushConsumer,
    Message,
    MessageListener,
    Producer,
)

CLIENTS: dict[str, Any] = {}


class Listener(MessageListener):  # type: ignore[misc]  # the client has no types
    """Notes messages; ``behaviour`` is ``success`` or ``failure``."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.behaviour = "success"

    def consume(self, message: Message) -> ConsumeResult:
        self.seen.append(f"{message.lite_topic}:{message.body.decode()}:{message.delivery_attempt}")
        return ConsumeResult.FAILURE if self.behaviour == "failure" else ConsumeResult.SUCCESS


def producer(configuration: ClientConfiguration, name: str, topic: str) -> str:
    CLIENTS[name] = Producer(configuration, (topic,))
    CLIENTS[name].startup()
    return ""


def send(_configuration: ClientConfiguration, name: str, topic: str, lite_topic: str, body: str) -> str:
    message = Message()
    message.topic, message.body, message.lite_topic = topic, body.encode(), lite_topic
    return str(CLIENTS[name].send(message).message_id)


def consumer(configuration: ClientConfiguration, name: str, group: str, topic: str) -> str:
    listener = CLIENTS[f"{name}.listener"] = Listener()
    CLIENTS[name] = LitePushConsumer(configuration, group, topic, listener)
    CLIENTS[name].startup()
    return ""


def subscribe(_configuration: ClientConfiguration, name: str, lite_topic: str) -> str:
    CLIENTS[name].subscribe_lite(lite_topic)
    return ""


def unsubscribe(_configuration: ClientConfiguration, name: str, lite_topic: str) -> str:
    CLIENTS[name].unsubscribe_lite(lite_topic)
    return ""


def subscribe_all(_configuration: ClientConfiguration, name: str) -> str:
    CLIENTS[name].subscribe_lite_all()
    return ""


def behave(_configuration: ClientConfiguration, name: str, behaviour: str) -> str:
    CLIENTS[f"{name}.listener"].behaviour = behaviour
    return ""


def seen(_configuration: ClientConfiguration, name: str) -> str:
    return ", ".join(CLIENTS[f"{name}.listener"].seen)


def close(_configuration: ClientConfiguration, name: str) -> str:
    CLIENTS.pop(name).shutdown()
    return ""


COMMANDS = {
    call.__name__: call
    for call in (producer, send, consumer, subscribe, unsubscribe, subscribe_all, behave, seen, close)
}


def main() -> None:
    configuration = ClientConfiguration(sys.argv[1], Credentials())
    for line in sys.stdin:
        command, *words = line.rstrip("\n").split("\t")
        try:
            answer = "ok\t" + COMMANDS[command](configuration, *words)
        except Exception as error:  # noqa: BLE001  # what it fails with is the answer
            answer = f"error\t{type(error).__name__}\t{error}"
        print(answer.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
