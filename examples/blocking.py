"""Without async: `rucola.sync` has the same clients with blocking calls, for scripts and threads."""

import os

from rucola.sync import Message, Producer, PullConsumer, PushConsumer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "BlockingExample"


def main() -> None:
    with Producer("blocking-producer", NAMESRV_ADDR) as producer:
        for number in range(3):
            result = producer.send(Message(TOPIC, f"message {number}".encode()))
            print(f"sent message {number}: {result.status.name}")

    consumer = PushConsumer("blocking-consumer", NAMESRV_ADDR)
    consumer.subscribe(TOPIC)
    with consumer:
        for count, message in enumerate(consumer, start=1):
            print(f"consumed {message.body.decode()}")
            if count == 3:
                break

    # A pull consumer does not share queues with a group: it reads any queue at any offset.
    with PullConsumer("blocking-reader", NAMESRV_ADDR) as reader:
        queues = reader.message_queues(TOPIC)
        held = sum(reader.max_offset(queue) - reader.min_offset(queue) for queue in queues)
        print(f"the topic has {len(queues)} queues and holds {'messages' if held else 'nothing'}")


main()
