"""Asynchronous producer and consumers. ``rucola.sync`` is generated from this package; it has the same names with
blocking calls.

For example::

    from rucola.client.push_consumer import PushConsumer

    async with PushConsumer("flights-reader", "127.0.0.1:9876", topics=["flights"]) as consumer:
        async for message in consumer:
            print(message.tags, message.body)
            break
"""
