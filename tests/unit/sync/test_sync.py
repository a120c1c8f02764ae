"""The generated blocking clients, and the tool that generates them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rucola
import rucola.sync
from rucola.client.loop_thread import shared_loop
from rucola.errors import ClientError, RemotingConnectError
from rucola.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from rucola.protocol.frame import FrameBatch
from rucola.remoting.server import Channel, RemotingServer

FACES = (
    "LiteConsumer",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
)
ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "async_to_sync.py"


class TinyBroker:
    """A broker on the clients' own event loop, which responds to requests for routes and to sends."""

    def __init__(self) -> None:
        self.server = RemotingServer(self, "127.0.0.1", 0)
        self.bodies: list[bytes] = []

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        for row in range(batch.count):
            command = batch.command(row)
            body, fields = b"", {}
            if command.code == 105:
                queues = [QueueData("b", 1, 1, 6)]
                body = TopicRouteData(None, queues, [BrokerData("c", "b", {0: self.server.address})]).encode()
            elif command.code == 310:
                fields = {"msgId": "00" * 16, "queueId": "0", "queueOffset": str(len(self.bodies))}
                self.bodies.append(bytes(command.body))
            elif command.code == 30:
                fields = {"offset": str(len(self.bodies))}
            channel.send(command.answer(0, ext_fields=fields, body=body).encode())

    def channel_closed(self, channel: Channel) -> None:
        pass


@pytest.fixture
def broker():
    tiny = TinyBroker()
    shared_loop().run(tiny.server.start())
    yield tiny
    shared_loop().run(tiny.server.close())


def test_blocking_calls(broker):
    with rucola.sync.Producer("pg", broker.server.address) as producer:
        assert producer.send(rucola.sync.Message("T", b"0")).queue_offset == 0
        futures = [producer.submit(rucola.sync.Message("T", str(n).encode())) for n in range(1, 50)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        producer.flush()
        assert [future.result().queue_offset for future in futures] == list(range(1, 50))
        assert producer.in_flight == 0
        assert "@" in producer.client_id
        queue = producer.message_queues("T")[0]
    with rucola.sync.PullConsumer("cg", broker.server.address) as consumer:
        assert consumer.max_offset(queue) == 50


def test_errors_reach_the_calling_thread(broker):
    with rucola.sync.Producer("pg", broker.server.address) as producer:
        with pytest.raises(ClientError, match="empty"):
            producer.send(rucola.sync.Message("T", b""))
        with pytest.raises(ClientError, match="empty"):
            producer.submit(rucola.sync.Message("T", b"")).result()
    with rucola.sync.PullConsumer("cg", "127.0.0.1:1") as consumer, pytest.raises(RemotingConnectError):
        consumer.message_queues("T")


def test_several_threads_share_one_loop(broker):
    with rucola.sync.Producer("pg", broker.server.address) as producer:
        threads = [
            threading.Thread(target=lambda: [producer.send(rucola.sync.Message("T", b"x")) for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(broker.bodies) == 80
    assert shared_loop() is shared_loop()


def test_calls_cancelled_before_they_begin_are_not_begun(broker):
    complaints: list[object] = []
    gate = threading.Event()

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    running = shared_loop().run(loop())
    running.set_exception_handler(lambda _, context: complaints.append(context))
    with rucola.sync.Producer("pg", broker.server.address) as producer:
        running.call_soon_threadsafe(gate.wait)
        futures = [producer.submit(rucola.sync.Message("T", body)) for body in (b"x", b"")]
        assert [future.cancel() for future in futures] == [True, True]
        gate.set()
        producer.flush()
    running.set_exception_handler(None)
    assert not complaints
    assert not broker.bodies


def test_calls_cancelled_on_the_loop_are_cancelled_for_those_that_wait():
    loop = shared_loop()
    work: list[asyncio.Future[int]] = []

    def begin() -> asyncio.Future[int]:
        work.append(asyncio.get_running_loop().create_future())
        return work[0]

    def cancel() -> bool:
        return work[0].cancel()

    handed = loop.submit(begin)
    assert loop.call(cancel)
    with pytest.raises(concurrent.futures.CancelledError):
        handed.result(timeout=10)
    assert handed.cancelled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_gets_a_loop_of_its_own():
    code = (
        "import os\n"
        "from rucola.client.loop_thread import shared_loop\n"
        "async def pid(): return os.getpid()\n"
        "assert shared_loop().run(pid()) == os.getpid()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if shared_loop().run(pid()) == os.getpid() else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_client_made_before_a_fork_says_so_in_the_child():
    """The client raises in the child, even if the thread of another client is being started at the moment of
    the fork.
    """
    code = (
        "import os, threading\n"
        "import rucola.sync\n"
        "from rucola.client import loop_thread\n"
        "from rucola.errors import ClientError\n"
        "producer = rucola.sync.Producer('pg', '127.0.0.1:1')\n"
        "producer.start()\n"
        "loop_thread._sharing.acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    said = []\n"
        "    for call in (producer.shutdown, lambda: producer.submit(rucola.sync.Message('T', b'x'))):\n"
        "        try:\n"
        "            call()\n"
        "        except ClientError as error:\n"
        "            said.append('create the client after the fork' in str(error))\n"
        "    fresh = rucola.sync.Producer('pg', '127.0.0.1:1')\n"
        "    fresh.start()\n"
        "    fresh.shutdown()\n"
        "    os._exit(0 if said == [True, True] else 1)\n"
        "loop_thread._sharing.release()\n"
        "producer.shutdown()\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("name", FACES)
def test_same_names_and_parameters(name):
    there, here = getattr(rucola, name), getattr(rucola.sync, name)
    assert issubclass(here, rucola.sync.Producer) is issubclass(there, rucola.Producer)
    public = [member for member in vars(there) if not member.startswith("_")]
    assert public == [member for member in vars(here) if not member.startswith("_")]
    for member in public:
        if callable(vars(there)[member]):
            expected = inspect.signature(vars(there)[member]).parameters
            assert inspect.signature(vars(here)[member]).parameters == expected
            assert not asyncio.iscoroutinefunction(vars(here)[member])


def test_exports():
    assert sorted(rucola.__all__) == rucola.__all__ == sorted(rucola.sync.__all__)
    for name in rucola.__all__:
        assert name in dir(rucola)
        if name not in FACES:
            assert getattr(rucola, name) is getattr(rucola.sync, name)
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = rucola.Nonsense


def test_import_is_light():
    code = "import sys, rucola, rucola.sync; sys.exit(bool({'typer', 'rich', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("package", ["rucola", "rucola.sync"])
def test_clients_import_nothing_of_the_server(package):
    code = (
        "import sys\n"
        f"from {package} import LitePullConsumer, Producer, PushConsumer, SimpleConsumer, TransactionProducer\n"
        "server = {'broker', 'store', 'namesrv', 'cli', 'spark', 'demo'}\n"
        "loaded = [name for name in sys.modules if name.startswith('rucola.') and name.split('.')[1] in server]\n"
        "others = {'rucola.remoting.server', 'lz4', 'zstandard', 'lark', 'yaml', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(repr([*loaded, *others]) if loaded or others else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_generated_files_are_current_and_a_change_is_seen(tmp_path):
    def check(tool: Path) -> int:
        return subprocess.run(
            [sys.executable, tool, "--check"], timeout=60, check=False, capture_output=True
        ).returncode

    assert check(TOOL) == 0
    copy = tmp_path / "tools" / "async_to_sync.py"
    for folder in ("tools", "src/rucola/client", "src/rucola/sync"):
        (tmp_path / folder).mkdir(parents=True)
    copy.write_text(TOOL.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for folder in ("client", "sync"):
        for path in (ROOT / "src" / "rucola" / folder).glob("*.py"):
            (tmp_path / "src" / "rucola" / folder / path.name).write_text(path.read_text())
    source = tmp_path / "src" / "rucola" / "client" / "producer.py"
    source.write_text(source.read_text().replace("async def flush(self)", "async def drain(self)"))
    assert check(copy) == 1
    assert subprocess.run([sys.executable, copy], timeout=60, check=False, capture_output=True).returncode == 0
    assert check(copy) == 0
    assert "def drain(self)" in (tmp_path / "src" / "rucola" / "sync" / "producer.py").read_text()
    (tmp_path / "src" / "rucola" / "sync" / "left_over.py").write_text("")
    assert check(copy) == 1


@pytest.mark.parametrize("name", FACES)
def test_with_and_async_with_are_told_apart(name):
    more = {"TransactionProducer": [object()], "LiteConsumer": ["agents"]}.get(name, [])

    async def wrong(client: object) -> None:
        async with client:
            pass

    with (
        pytest.raises(ClientError, match=rf"rucola\.{name} is asynchronous: use `async with`, or rucola\.sync\.{name}"),
        getattr(rucola, name)("g", "127.0.0.1:1", *more),
    ):
        pass
    blocking = getattr(rucola.sync, name)("g", "127.0.0.1:1", *more)
    with pytest.raises(ClientError, match=rf"rucola\.sync\.{name} is blocking: use `with`, or rucola\.{name} with"):
        asyncio.run(wrong(blocking))
