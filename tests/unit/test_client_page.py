"""The blocks of docs/client.md run one after the other, as at the prompt of ``python -m asyncio``."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from rucola import MessageExt
from rucola.testing.rocketmq import RocketMQ

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
CLASSES = ("Producer", "TransactionProducer", "PushConsumer", "LitePullConsumer", "SimpleConsumer", "PullConsumer")


class ServedError(Exception):
    """Ends a block that would wait for further messages."""


class Application:
    """What the blocks take from the application: it knows what has to arrive."""

    def __init__(self) -> None:
        self.charged: dict[str, tuple[str | None, bytes]] = {}
        self.cooked: list[bytes] = []
        self.written: list[bytes] = []
        self.closing_time = asyncio.Event()

    async def charge(self, msg_id: str, table: str | None, body: bytes) -> None:
        self.charged[msg_id] = table, body
        if len(self.charged) == 2:
            raise ServedError

    async def cook(self, order: MessageExt) -> None:
        self.cooked.append(order.body)
        if len(self.cooked) == 2:
            self.closing_time.set()

    async def write(self, orders: list[MessageExt]) -> None:
        self.written += [order.body for order in orders]


async def run(block: str, names: dict[str, Any]) -> str:
    """Runs a block; returns what it prints."""
    code = compile(block, "client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    out = StringIO()
    with redirect_stdout(out):
        try:
            waiting = eval(code, names)
            if inspect.isawaitable(waiting):
                await asyncio.wait_for(waiting, 30)
        except ServedError:
            pass
    return out.getvalue()


def test_every_block_runs() -> None:
    found = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert all(re.search(rf"with {name}\(|= {name}\(", "".join(found)) for name in CLASSES)

    async def page(namesrv: str) -> tuple[Application, list[str]]:
        application = Application()
        names: dict[str, Any] = {
            name: getattr(application, name) for name in ("charge", "cook", "write", "closing_time")
        }
        told = []
        for block in found:
            told.append(await run(block.replace("127.0.0.1:9876", namesrv).replace("5_000", "1_000"), names))
        return application, told

    with RocketMQ() as rocketmq:
        application, told = asyncio.run(page(rocketmq.namesrv))
        sent = {message.msg_id: message.body for message in rocketmq.messages("orders")}
    assert sorted(sent.values()) == [b"espresso", b"latte"]
    first = next(msg_id for msg_id, body in sent.items() if body == b"espresso")
    assert told[0] == f"SEND_OK {first}\n"
    assert application.charged == {
        msg_id: ("5" if body == b"espresso" else None, body) for msg_id, body in sent.items()
    }
    assert sorted(application.cooked) == [b"espresso", b"latte"]
    assert sorted(application.written[:2]) == [b"espresso", b"latte"] and application.written[2:]
    assert told[-1].endswith("b'espresso'\n") and len(told[-1].splitlines()) == 5
