"""docs/service.md is true: its programs run, stop as they promise, and start in any order."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rucola import Message, Producer, PushConsumer, RemotingError
from rucola.sync import Producer as BlockingProducer
from rucola.testing.rocketmq import RocketMQ

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
WORKER, APPLICATION = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BODY = '    await producer.send(Message("receipts"'
SLOW = '    import sys\n    print("begun", flush=True)\n    await asyncio.to_thread(sys.stdin.readline)\n'


def _send(rocketmq: RocketMQ, *bodies: bytes) -> None:
    with BlockingProducer("pg", rocketmq.namesrv) as producer:
        producer.send_batch([Message("orders", body) for body in bodies])


def test_the_worker_finishes_its_message_at_sigterm_and_leaves_the_others(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER.replace(BODY, SLOW + BODY))
    with RocketMQ() as rocketmq:
        rocketmq.create_topic("orders", queues=1)
        _send(rocketmq, b"one", b"two", b"three")
        command = [sys.executable, "-X", "dev", "-W", "error", str(program)]
        with subprocess.Popen(
            command,
            env={**rocketmq.env, "PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as worker:
            assert worker.stdin is not None and worker.stdout is not None
            assert worker.stdout.readline() == b"begun\n"
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(0.3)  # it waits for its body
            worker.stdin.write(b"\n")
            worker.stdin.flush()
            assert worker.wait(20) == 0
        assert [message.body for message in rocketmq.messages("receipts")] == [b"one"]
        rest = asyncio.run(_consumed(rocketmq, "till", 2))
    assert rest == [b"two", b"three"]


async def _consumed(rocketmq: RocketMQ, group: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with PushConsumer(group, rocketmq.namesrv, topics=["orders"]) as consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == count:
                break
    return found


def test_an_error_of_the_loop_ends_the_worker(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER.replace(BODY, '    raise OSError("no paper")\n' + BODY))
    with RocketMQ() as rocketmq:
        _send(rocketmq, b"one")
        env = {**rocketmq.env, "PYTHONPATH": ":".join(sys.path)}
        ended = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, b"OSError: no paper")


def test_the_worker_sends_a_bad_message_back_and_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    fails = '    if order.body == b"bad":\n        raise ValueError("no such coffee")\n'
    program.write_text(WORKER.replace(BODY, fails + BODY))
    with RocketMQ() as rocketmq:
        _send(rocketmq, b"bad", b"good")
        env = {**rocketmq.env, "PYTHONPATH": ":".join(sys.path)}
        with subprocess.Popen([sys.executable, str(program)], env=env) as worker:
            try:
                assert [message.body for message in rocketmq.retries("till", count=1)] == [b"bad"]
                assert [message.body for message in rocketmq.wait_for_messages("receipts", count=1)] == [b"good"]
                worker.terminate()
                assert worker.wait(20) == 0
            finally:
                worker.kill()


def test_sigterm_ends_the_loop_of_a_blocking_consumer_after_its_body(tmp_path: Path) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: consumer.shutdown())"
    assert f"`{handler}`" in PAGE
    program = tmp_path / "worker.py"
    program.write_text(
        f"""import os, signal, sys
from rucola.sync import PushConsumer

consumer = PushConsumer("till", os.environ["NAMESRV_ADDR"], topics=["orders"])
{handler}
with consumer:
    for order in consumer:
        print("begun", flush=True)
        sys.stdin.readline()
        print("done", flush=True)
print("ended")
"""
    )
    with RocketMQ() as rocketmq:
        _send(rocketmq, b"one", b"two")
        env = {**rocketmq.env, "PYTHONPATH": ":".join(sys.path)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, str(program)], env=env, **pipes) as worker:
            try:
                assert worker.stdin is not None and worker.stdout is not None
                assert worker.stdout.readline() == b"begun\n"
                worker.terminate()
                with pytest.raises(subprocess.TimeoutExpired):
                    worker.wait(0.3)  # its body goes on
                worker.stdin.write(b"\n")
                worker.stdin.flush()
                assert worker.wait(20) == 0
                assert worker.stdout.read() == b"done\nended\n"
            finally:
                worker.kill()


def test_the_application_sends_reports_its_health_and_stops() -> None:
    async def work(rocketmq: RocketMQ) -> None:
        imports = WORKER.partition("\n\n\n")[0]
        names: dict[str, Any] = {"__name__": "application"}
        exec(compile(imports + "\n" + APPLICATION, "service.md", "exec"), names)
        names["NAMESRV"] = rocketmq.namesrv
        app = names["app"]
        async with app.router.lifespan_context(app):
            assert await _asked(app, "GET", "/livez") == 200
            assert await _asked(app, "POST", "/orders", b"espresso") == 200
            async with Producer("till", rocketmq.namesrv) as producer:
                await producer.send(Message("receipts", b"x", keys="receipt-1"))
            while getattr(app.state, "last_receipt", "") != "receipt-1":
                await asyncio.sleep(0.01)
        assert app.state.work.done() and app.state.work.exception() is None
        assert await _asked(app, "GET", "/livez") == 503

    with RocketMQ() as rocketmq:
        asyncio.run(asyncio.wait_for(work(rocketmq), 30))
        assert [message.body for message in rocketmq.messages("orders")] == [b"espresso"]


async def _asked(app: Any, method: str, path: str, body: bytes = b"") -> int:
    """Sends a request to an ASGI application; returns the status."""
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "app": app}
    await app(scope, receive, send)
    return int(told[0]["status"])


def test_without_a_name_server_the_consumer_fails_at_once_and_the_producer_starts() -> None:
    async def work() -> None:
        async with Producer("pg", "127.0.0.1:1"):
            with pytest.raises(RemotingError):
                await PushConsumer("till", "127.0.0.1:1", topics=["orders"]).start()

    asyncio.run(asyncio.wait_for(work(), 10))


@pytest.mark.parametrize("missing", ["broker", "topic"])
def test_without_broker_or_topic_the_consumer_starts_and_reads_later(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(rocketmq: RocketMQ) -> None:
        async with PushConsumer("till", rocketmq.namesrv, topics=["orders"]) as consumer:
            if missing == "broker":
                await asyncio.to_thread(rocketmq.start)
            await asyncio.to_thread(_send, rocketmq, b"one")
            async for message in consumer:
                assert message.body == b"one"
                break

    with RocketMQ() as rocketmq, caplog.at_level(logging.WARNING, "rucola"):
        if missing == "broker":
            rocketmq.create_topic("orders")
            rocketmq.stop()
        asyncio.run(asyncio.wait_for(work(rocketmq), 60))
    warned = {vars(record).get("rucola_event") for record in caplog.records}
    assert "subscribed topic does not exist yet" in warned
