"""``rucola replica`` as a process, and its options."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.attack.guarded import certificate
from tests.brokers import Cluster, run
from tests.masters import HaPort, MasterLog, log_bytes
from tests.slaves import ha_server
from tests.unit.cli.test_cli import TIMEOUT_S, refused, refused_here, start

from rucola.cli.amounts import keep_rule
from rucola.cli.exit_codes import ExitCode
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.tls import client_context
from rucola.store.keep_rule import KeepRule
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.verify.check import verify

SEGMENT = 4 << 20
"""Length of a segment of ``Cluster``."""
NEEDED = ("--master", "127.0.0.1:1", "--hidden")


def log_of(cluster: Cluster) -> MasterLog:
    return MasterLog(log_bytes(cluster.broker.store), segment_bytes=SEGMENT)


async def told(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    facts: dict[str, object] = json.loads(await asyncio.to_thread(process.stdout.readline))
    return facts


async def ended(process: subprocess.Popen[str], number: int | None = None) -> tuple[int, str]:
    if number is not None:
        process.send_signal(number)
    _, errors = await asyncio.to_thread(process.communicate, timeout=TIMEOUT_S)
    return process.returncode, errors


@pytest.fixture
def replicas() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts replicas, and kills those that a failed test leaves."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        processes.append(start("replica", *words))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


def test_a_copy_of_a_running_broker(tmp_path: Path, replicas: Callable[..., subprocess.Popen[str]]) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path / "master") as cluster:
            for number in range(20):
                await cluster.send("Flights", b"%d" % number, queue_id=number % 4)
            async with HaPort(log_of(cluster)) as ha:
                store = str(tmp_path / "copy")
                words = ("--hidden", "--json", "--store", store, "--master", ha.address)
                words += ("--broker", cluster.broker.address)
                first = replicas(*words, "--until", "now")
                facts = await told(first)
                assert (facts["segmentBytes"], facts["endOffset"], facts["store"]) == (SEGMENT, 0, store)
                assert (await ended(first))[0] == ExitCode.CLEAN
                following = replicas(*words)
                assert (await told(following))["endOffset"] == ha.master.end
                code, errors = await ended(replicas(*words))
                assert (code, "is in use by another process" in errors) == (ExitCode.STORE_LOCKED, True)
                await cluster.send("Flights", b"more")
                await ha.grow(log_of(cluster))
                while not ha.reports or ha.reports[-1][1] < ha.master.end:
                    await asyncio.sleep(0.05)
                reader = OfflineStore(store)
                assert (reader.end_offset(), reader.queue_range("Flights", 0).max_offset) == (ha.master.end, 6)
                reader.close()
                assert (await ended(following, signal.SIGTERM))[0] == 0
                await ha.grow(ha.master.changed(ha.master.end - 30, b"???"))
                code, errors = await ended(replicas(*words))
                assert (code, "SHA-256" in errors) == (ExitCode.FAILED, True)
                assert len(errors.strip().splitlines()[-1]) < 600

    run(scenario())
    report = verify(str(tmp_path / "copy"))
    assert (report.records, report.clean) == (21, True)
    names = {file.name for file in (tmp_path / "copy" / "config").iterdir() if not file.name.endswith(".bak")}
    assert names == {"topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"}


def test_a_copy_over_tls(tmp_path: Path, replicas: Callable[..., subprocess.Popen[str]]) -> None:
    """Of the log, and of the tables at the port for clients."""
    certificate(tmp_path, "authority")
    for name in ("broker", "slave"):
        certificate(tmp_path, name, authority="authority")
    authority, key, chain = (str(tmp_path / name) for name in ("authority.pem", "slave.key", "slave.pem"))
    files = {"tls_cert_path": str(tmp_path / "broker.pem"), "tls_key_path": str(tmp_path / "broker.key")}
    files["ha_tls_trust_cert_path"] = authority

    async def scenario() -> None:
        async with Cluster(
            tmp_path / "master", ha_listen_port=0, ha_tls_mode="enforcing", tls_mode="enforcing", **files
        ) as cluster:
            producer = RemotingClient(ClientOptions(tls=client_context(authority)))
            await producer.invoke(cluster.broker.address, cluster.send_command("Flights", b"x" * 1000))
            await producer.close()
            store = str(tmp_path / "copy")
            words = ("--hidden", "--json", "--store", store, "--broker", cluster.broker.address, "--until", "now")
            words += ("--master", f"127.0.0.1:{ha_server(cluster).port}", "--tls-ca", authority)
            copy = replicas(*words, "--tls-cert", chain, "--tls-key", key)
            assert (await ended(copy))[0] == ExitCode.CLEAN
            reader = OfflineStore(store)
            assert reader.end_offset() == cluster.broker.store.max_offset
            reader.close()

    run(scenario())
    assert (tmp_path / "copy" / "config" / "topics.json").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--store", "s", "--master", "h:1"), "--hidden"),
        (("--store", "s", "--hidden"), "--master"),
        (("--master", "h:1", "--hidden"), "--store"),
        (("--store", "s", "--hidden", "--master", "nowhere"), "option --master: 'nowhere'"),
        (("--store", "s", *NEEDED, "--broker", "x"), "--broker"),
        (("--store", "s", *NEEDED, "--until", "now"), "--broker"),
        (("--store", "s", *NEEDED, "--until", "later", "--broker", "h:1"), "now"),
        (("--store", "s", *NEEDED, "--segment-bytes", "0"), "--segment-bytes"),
        (("--store", "s", *NEEDED), "--segment-bytes"),
        (("--store", "s", *NEEDED, "--segment-bytes", "17"), "mappedFileSizeCommitLog"),
        (("--store", "s", *NEEDED, "--access-key", "me", "--segment-bytes", "65536"), "accessKey"),
        (("--store", "s", *NEEDED, "--tls-cert", "me.pem"), "--tls-ca"),
        (("--store", "s", *NEEDED, "--tls-key", "me.key"), "--tls-ca"),
        (("--store", "s", *NEEDED, "--tls-ca", "nothing.pem"), "nothing.pem"),
        (("--store", "s", *NEEDED, "--keep", "30"), "--segment-bytes"),
        (("--store", "s", *NEEDED, "--quarantine-max", "30d"), "--quarantine-max"),
        *(
            (("--store", "s", *NEEDED, "--keep", text), "--keep")
            for text in ("", "0d", "1w", "-1h", "1 GiB", "\u0663d")
        ),
    ],
)
def test_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUCOLA_SECRET_KEY", raising=False)
    code, error = refused_here(capsys, "replica", *words)
    assert (code, text in error) == (ExitCode.USAGE, True), error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("30d", KeepRule(age_ms=30 * 86_400_000)),
        ("12h", KeepRule(age_ms=12 * 3_600_000)),
        ("200GiB", KeepRule(size_bytes=200 << 30)),
        ("3KiB", KeepRule(size_bytes=3072)),
        ("2TiB", KeepRule(size_bytes=2 << 40)),
        ("1000", KeepRule(size_bytes=1000)),
    ],
)
def test_amounts_to_keep(text: str, rule: KeepRule) -> None:
    assert keep_rule("--keep", text) == rule


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    code, error = refused("replica", "--store", str(tmp_path / "s"), *NEEDED, "--broker", "127.0.0.1:1")
    assert (code, "cannot connect to 127.0.0.1:1" in error) == (ExitCode.FAILED, True)
