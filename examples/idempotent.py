"""Idempotent work: the id of each message goes into a table, in the transaction of its work, so that a message that
comes twice is booked once.
"""

import asyncio
import os
import sqlite3

from rucola import Message, MessageExt, Producer, PushConsumer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC, PAYMENTS = "IdempotentExample", 5


def book(database: sqlite3.Connection, message: MessageExt) -> bool:
    """Adds a payment to the account; returns False if it was booked before."""
    with database:  # One transaction: the id and the work, or neither.
        new = database.execute("INSERT OR IGNORE INTO booked VALUES (?)", (message.msg_id,)).rowcount == 1
        if new:
            database.execute("UPDATE account SET cents = cents + ?", (int(message.body),))
    return new


async def main() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript("""
        CREATE TABLE booked (msg_id TEXT PRIMARY KEY);
        CREATE TABLE account (cents INTEGER);
        INSERT INTO account VALUES (0);
    """)
    async with Producer("idempotent-producer", NAMESRV_ADDR) as producer:
        for _ in range(PAYMENTS):
            await producer.send(Message(TOPIC, b"100"))

    try:
        async with PushConsumer("idempotent-consumer", NAMESRV_ADDR, topics=[TOPIC]) as consumer:
            async for message in consumer:
                book(database, message)
                raise SystemError("booked, but the broker does not know it")
    except SystemError as error:
        print(f"first life: {error}")

    known = count = 0
    async with PushConsumer("idempotent-consumer", NAMESRV_ADDR, topics=[TOPIC]) as consumer:
        async for message in consumer:
            known += not book(database, message)
            count += 1
            if count == PAYMENTS:
                break
    print(f"second life: {count} messages, {known} of them known")
    print(f"account: {database.execute('SELECT cents FROM account').fetchone()[0]} cents")
    database.close()


asyncio.run(main())
