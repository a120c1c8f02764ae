"""A push consumer of the official Python gRPC client that shares a group with others. Arguments: ``host:port``, group,
topic. Prints ``R`` when started and ``G body attempt`` for each message, until it is killed.
"""

from __future__ import annotations

import sys
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    PushConsumer,
)


class Printer(MessageListener):  # type: ignore[misc]  # the client has no types
    """Prints each message."""

    def consume(self, message: Message) -> ConsumeResult:
        sys.stdout.write(
            f"G {message.body.decode()} {message.delivery_attempt}\n"
        )  # one call: threads do not mix lines
        sys.stdout.flush()
        return ConsumeResult.SUCCESS


if __name__ == "__main__":
    configuration = ClientConfiguration(sys.argv[1], Credentials())
    PushConsumer(configuration, sys.argv[2], Printer(), {sys.argv[3]: FilterExpression()}).startup()
    print("R", flush=True)
    threading.Event().wait()
