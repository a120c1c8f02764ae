"""Transactions: a message is delivered if, and only if, the application's own part of the work succeeded."""

import asyncio
import os

from rucola import LocalTransactionState, Message, MessageExt, PushConsumer, TransactionProducer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "TransactionExample"


class Accounts:
    """Stands for a database. Both methods could be coroutine functions; these are plain functions and run in
    threads.
    """

    def __init__(self) -> None:
        self.done: set[str | None] = set()

    def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
        """Called when the broker has stored the message, before any consumer can see it."""
        if argument == "not enough money":
            return LocalTransactionState.ROLLBACK_MESSAGE
        self.done.add(message.uniq_key)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Called if the broker did not receive the outcome, perhaps in another process of the producer group."""
        known = message.uniq_key in self.done
        return LocalTransactionState.COMMIT_MESSAGE if known else LocalTransactionState.ROLLBACK_MESSAGE


async def main() -> None:
    async with TransactionProducer("transaction-producer", NAMESRV_ADDR, Accounts(), topics=[TOPIC]) as producer:
        for text, argument in (("first", None), ("second", "not enough money"), ("third", None)):
            result = await producer.send_message_in_transaction(Message(TOPIC, text.encode()), argument)
            print(f"{text}: {result.local_transaction_state.name}")

    consumer = PushConsumer("transaction-consumer", NAMESRV_ADDR)
    await consumer.subscribe(TOPIC)
    async with consumer:
        count = 0
        async for message in consumer:
            print(f"consumed {message.body.decode()}")
            count += 1
            if count == 2:
                break


asyncio.run(main())
