"""The HA port over TLS: who has no certificate of a slave copies nothing; half a handshake costs others nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.attack.grpc_peers import MIB
from tests.attack.guarded import certificate
from tests.brokers import Cluster, run, run_virtual
from tests.masters import HaPort, MasterLog, log_bytes
from tests.pairs import Pair
from tests.slaves import ScriptedSlave, ha_server
from tests.unit.broker.ha.test_replica import running
from tests.unit.broker.test_disk_trouble import until

from rucola.broker.config import BrokerConfig
from rucola.broker.ha.replica import Replica
from rucola.broker.ha.slave_access import SlaveAccess
from rucola.errors import ConfigError
from rucola.protocol.codes import ResponseCode
from rucola.remoting import tls_listener
from rucola.runtime.tls import client_context

SEGMENT = 4 * MIB
"""Length of a segment of ``Cluster``."""


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("servers", "slaves", "clients"):
        certificate(folder, authority)
    certificate(folder, "broker", authority="servers")
    certificate(folder, "elsewhere", authority="servers", host="10.1.1.1")
    certificate(folder, "slave", authority="slaves")
    certificate(folder, "member", authority="slaves")
    certificate(folder, "client", authority="clients")
    certificate(folder, "stranger")
    expired(folder)
    return folder


def expired(folder: Path) -> None:
    """Makes a certificate of a slave whose time is over."""
    pem = (folder / "slaves.key").read_bytes()
    authority = x509.load_pem_x509_certificate((folder / "slaves.pem").read_bytes())
    signer, key = serialization.load_pem_private_key(pem, None), ec.generate_private_key(ec.SECP256R1())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(authority.subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(9)).not_valid_after(now - timedelta(1))
    (folder / "expired.pem").write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "expired.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def with_tls(pems: Path, mode: str, name: str = "broker") -> dict[str, Any]:
    """Options of a master."""
    return {
        "ha_listen_port": 0,
        "ha_tls_mode": mode,
        "tls_cert_path": str(pems / f"{name}.pem"),
        "tls_key_path": str(pems / f"{name}.key"),
        "ha_tls_trust_cert_path": str(pems / "slaves.pem"),
    }


def shows(pems: Path, name: str | None, trusts: str = "servers") -> ssl.SSLContext:
    """The context of a slave that shows a certificate."""
    shown = ("", "") if name is None else (str(pems / f"{name}.pem"), str(pems / f"{name}.key"))
    return client_context(str(pems / f"{trusts}.pem"), *shown)


def replica(
    path: Path, cluster: Cluster, tls: ssl.SSLContext | None, port: int | None = None
) -> AbstractAsyncContextManager[tuple[Replica, asyncio.Task[None]]]:
    """A replica of the cluster's broker."""
    ha = HaPort(MasterLog(b"", segment_bytes=SEGMENT))
    ha.address = f"127.0.0.1:{port or ha_server(cluster).port}"
    return running(path, ha, segment_bytes=SEGMENT, tls=tls)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_s77_a_certificate_suffices_from_anywhere(
    tmp_path: Path, pems: Path, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SlaveAccess, "allows", lambda self, host: False)
    caplog.set_level(logging.INFO)

    async def play() -> None:
        async with Cluster(
            tmp_path / "a", broker_role="SYNC_MASTER", slave_timeout_ms=60_000, **with_tls(pems, mode)
        ) as cluster:
            async with replica(tmp_path / "b", cluster, shows(pems, "slave")) as (copy, _):
                await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
                for number in range(4):
                    assert (await cluster.send("T", b"%d" % number * 20_000)).code == ResponseCode.SUCCESS
                assert log_bytes(copy.store) == log_bytes(cluster.broker.store)
            assert "slave connected" in caplog.text and 'certificate="commonName=slave"' in caplog.text

    run(play())


def test_s77_both_kinds_on_one_port(tmp_path: Path, pems: Path) -> None:
    """The first byte tells: of an offset it is 0."""

    async def play() -> None:
        async with Cluster(tmp_path, **with_tls(pems, "permissive")) as cluster:
            await cluster.send("T", b"x" * MIB)
            end = cluster.broker.store.max_offset
            for tls in (None, shows(pems, "slave")):
                slave = await ScriptedSlave.connect(cluster, tls=tls)
                slave.report(1)
                await slave.follow(end)
                await until(lambda: ha_server(cluster).reported_offset(1) == end)
                slave.close()
                await until(lambda: not ha_server(cluster).slaves)

    run(play())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("shown", ["nothing", "client", "stranger", "expired"])
def test_s77_who_shows_no_valid_certificate_of_a_slave_gets_no_byte(
    tmp_path: Path, pems: Path, mode: str, shown: str
) -> None:
    """Neither does a client whose certificate the port for clients takes; not even from loopback."""

    async def play() -> None:
        options = {"tls_mode": "permissive", "tls_need_client_auth": "optional"}
        options["tls_trust_cert_path"] = str(pems / "clients.pem")
        async with Cluster(tmp_path, **options, **with_tls(pems, mode)) as cluster:
            await cluster.send("T", b"secret")
            try:
                peer = await ScriptedSlave.connect(cluster, tls=shows(pems, None if shown == "nothing" else shown))
            except (ssl.SSLError, ConnectionError):
                return
            peer.report(0)
            with pytest.raises((EOFError, ssl.SSLError)):
                await peer.transfer()
            assert not peer.content and not ha_server(cluster).connections
            peer.close()

    run(play())


ALERTS = {
    "nothing": "CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE",
    "stranger": "UNKNOWN_CA",
    "expired": "CERTIFICATE_EXPIRED",
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shown", ALERTS)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_s77_who_is_refused_is_told_so_by_an_alert(
    tmp_path: Path, pems: Path, shown: str, version: ssl.TLSVersion, loop: str
) -> None:
    """By a client with a plain socket, whose reports are under way when its certificate is refused."""
    tls = shows(pems, None if shown == "nothing" else shown)
    tls.maximum_version = version
    factory = None if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def asks(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
            tls.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            for _ in range(1000):
                secure.sendall(bytes(8))
            secure.recv(1)

    async def play() -> None:
        async with Cluster(tmp_path, **with_tls(pems, "enforcing")) as cluster:
            with pytest.raises(ssl.SSLError, match=ALERTS[shown]):
                await asyncio.to_thread(asks, ha_server(cluster).port)
            listener: Any = ha_server(cluster)._server
            await until(lambda: not listener._tasks)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(play())


def test_s77_a_refused_peer_that_stays_is_closed(tmp_path: Path, pems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "_LAST_WORDS_S", 0.05)

    async def play() -> None:
        async with Cluster(tmp_path, **with_tls(pems, "enforcing")) as cluster:
            listener: Any = ha_server(cluster)._server
            with socket.create_connection(("127.0.0.1", ha_server(cluster).port), timeout=30) as stays:
                stays.sendall(b"\x16\x03\x01\x00\x05\xff\xff\xff\xff\xff")  # a handshake that begins with nonsense
                assert (await asyncio.to_thread(stays.recv, 1 << 16))[:1] == b"\x15"
                await until(lambda: not listener._tasks)

    run(play())


def test_s77_a_refused_peer_that_floods_is_closed(tmp_path: Path, pems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "_LAST_WORDS_S", 600)

    async def play() -> None:
        async with Cluster(tmp_path, **with_tls(pems, "enforcing")) as cluster:
            listener: Any = ha_server(cluster)._server
            with socket.create_connection(("127.0.0.1", ha_server(cluster).port), timeout=30) as floods:

                def flood() -> None:
                    floods.sendall(b"\x16\x03\x01\x00\x05\xff\xff\xff\xff\xff")
                    for _ in range(200):  # more than the system takes by itself
                        floods.sendall(bytes(MIB))

                with pytest.raises(ConnectionError):
                    await asyncio.to_thread(flood)
                await until(lambda: not listener._tasks)

    run(play())


def test_s77_a_plain_slave_at_a_port_for_tls_only(tmp_path: Path, pems: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with Cluster(tmp_path / "a", **with_tls(pems, "enforcing")) as cluster:
            await cluster.send("T", b"secret")
            plain = await ScriptedSlave.connect(cluster)
            plain.report(0)
            assert await plain.is_closed() and not plain.content and not ha_server(cluster).connections
            async with replica(tmp_path / "b", cluster, None):
                await until(lambda: "connection to master ended" in caplog.text)
            assert "handshake failed" in caplog.text

    run(play())


@pytest.mark.parametrize(
    ("name", "trusts", "reason"),
    [("elsewhere", "servers", "IP address mismatch"), ("broker", "clients", "CERTIFICATE_VERIFY_FAILED")],
)
def test_s77_a_slave_sends_nothing_to_a_false_master(
    tmp_path: Path, pems: Path, name: str, trusts: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on trying, and says why: certificates are replaced while it runs."""

    async def play() -> None:
        async with Cluster(tmp_path / "a", **with_tls(pems, "permissive", name)) as cluster:
            await cluster.send("T", b"x")
            async with replica(tmp_path / "b", cluster, shows(pems, "slave", trusts)) as (copy, task):
                await until(lambda: "master not reached" in caplog.text)
                assert reason in caplog.text and not task.done() and copy.end_offset == 0
            assert not ha_server(cluster).connections

    run(play())


def test_s77_a_slave_whose_certificate_is_refused_is_sent_to_the_masters_log(
    tmp_path: Path, pems: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with (
            Cluster(tmp_path / "a", **with_tls(pems, "enforcing")) as cluster,
            replica(tmp_path / "b", cluster, shows(pems, "expired")) as (_, task),
        ):
            await until(lambda: "before it sent anything; its log may say why" in caplog.text)
            assert "ALERT_CERTIFICATE_EXPIRED" in caplog.text
            wanted = 'peer=127.0.0.1 reason="handshake failed: CERTIFICATE_VERIFY_FAILED, certificate has expired"'
            await until(lambda: wanted in caplog.text)
            assert not task.done()

    run(play())


@pytest.mark.parametrize("kind", ["our plain master", "silent", "RocketMQ's heartbeats"])
def test_s77_a_tls_slave_at_a_master_without_tls(
    tmp_path: Path, pems: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A master of RocketMQ takes the hello for offsets beyond its log; it sends only heartbeats."""
    alone = MasterLog(b"", segment_bytes=SEGMENT)

    async def play() -> None:
        async with Cluster(tmp_path / "a", ha_listen_port=0) as cluster, HaPort(alone) as ha:
            await cluster.send("T", b"x")
            ha.silent = kind == "silent"
            port = None if kind == "our plain master" else int(ha.address.rpartition(":")[2])
            async with replica(tmp_path / "b", cluster, shows(pems, "slave"), port) as (copy, task):
                await until(lambda: "master not reached" in caplog.text)
                assert not task.done() and copy.end_offset == 0
            assert (await cluster.send("T", b"others go on")).code == ResponseCode.SUCCESS

    run_virtual(play())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01"])
def test_s77_a_handshake_that_does_not_go_on_ends(
    tmp_path: Path, pems: Path, mode: str, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_S", 0.2)

    async def play() -> None:
        async with Cluster(tmp_path, **with_tls(pems, mode)) as cluster:
            half = await ScriptedSlave.connect(cluster)
            half.write(begun)
            assert await half.is_closed()

    run(play())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_s77_a_thousand_half_handshakes(tmp_path: Path, pems: Path, mode: str) -> None:
    """No more than 32 of one address are open; slaves that are there, and clients, go on."""

    async def play() -> None:
        async with Cluster(
            tmp_path, broker_role="SYNC_MASTER", slave_timeout_ms=60_000, **with_tls(pems, mode)
        ) as cluster:
            slave = await ScriptedSlave.connect(cluster, tls=shows(pems, "slave"))
            slave.report(0)
            serving = asyncio.create_task(slave.serve())
            await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
            listener: Any = ha_server(cluster)._server
            halves = []
            for number in range(1000):
                halves.append(await ScriptedSlave.connect(cluster))
                halves[-1].write(b"\x16\x03\x01")
                if number % 100 == 0:
                    assert (await cluster.send("T", b"x" * 1000)).code == ResponseCode.SUCCESS
                assert listener._shaking["127.0.0.1"] <= tls_listener.HANDSHAKES_MAX
            assert all([await half.is_closed() for half in halves[tls_listener.HANDSHAKES_MAX :]])
            for half in halves:
                half.close()
            await until(lambda: not listener._shaking)
            again = await ScriptedSlave.connect(cluster, tls=shows(pems, "slave"))
            again.report(1)
            await again.follow(cluster.broker.store.max_offset)
            for each in (slave, again):
                each.close()
            await serving

    run(play())


def test_s77_a_stop_ends_handshakes_and_slaves(tmp_path: Path, pems: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, **with_tls(pems, "permissive")) as cluster:
            await cluster.send("T", b"x")
            half = await ScriptedSlave.connect(cluster)
            half.write(b"\x16\x03")
            slave = await ScriptedSlave.connect(cluster, tls=shows(pems, "slave"))
            slave.report(1)
            await slave.follow(cluster.broker.store.max_offset)
            await cluster.stop_broker()
            assert await half.is_closed() and await slave.is_closed()

    run(play())


@pytest.mark.parametrize("missing", ["tls_cert_path", "tls_key_path", "ha_tls_trust_cert_path"])
def test_files_that_are_missing(tmp_path: Path, pems: Path, missing: str) -> None:
    """They are needed whatever tlsMode is. The authority of clients is never taken for that of slaves."""
    options = {**with_tls(pems, "permissive"), "tls_trust_cert_path": str(pems / "slaves.pem")}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(**{**options, missing: ""})
    assert caught.value.key.lower() == missing.replace("_", "")

    async def start() -> None:
        with pytest.raises(ConfigError) as refused:
            async with Cluster(tmp_path, **{**options, missing: str(tmp_path / "nothing")}):
                pass
        key = "tlsCertPath" if missing == "tls_key_path" else caught.value.key  # loaded together
        assert refused.value.key == key

    run(start())


def member_of(pems: Path, name: str = "member", trusts: str = "slaves") -> dict[str, Any]:
    """Options of a broker that may be master or slave."""
    return with_tls(pems, "enforcing", name) | {"ha_tls_trust_cert_path": str(pems / f"{trusts}.pem")}


def test_s77_a_broker_as_a_slave_shows_its_certificate(
    tmp_path: Path, pems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlaveAccess, "allows", lambda self, host: False)

    async def play() -> None:
        async with Pair(tmp_path, member_of(pems), **member_of(pems)) as pair:
            await pair.begin(b"x" * 50_000)
            assert pair.same_log() and not pair.slave.not_in_sync

    run_virtual(play())


@pytest.mark.parametrize(("shown", "trusts"), [("stranger", "slaves"), ("member", "clients")])
def test_s77_a_broker_as_a_slave_and_a_master_that_do_not_trust_each_other(
    tmp_path: Path, pems: Path, shown: str, trusts: str
) -> None:
    async def play() -> None:
        async with Pair(tmp_path, member_of(pems, shown, trusts), **member_of(pems)) as pair:
            await pair.send("T", b"secret")
            await pair.start_slave()
            await asyncio.sleep(60)
            assert pair.slave.not_in_sync and pair.slave.store.max_offset == 0
            assert not pair.broker.slaves

    run_virtual(play())
