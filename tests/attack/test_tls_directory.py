"""``--tls-dir``: the certificate of the gRPC port stays the same, and no directory of another user can change that."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from tests.attack.guarded import certificate
from tests.unit.grpc.services import served
from tests.unit.grpc.test_tls import Who, ask, trusting

from rucola.broker.config import BrokerConfig
from rucola.cli.main import main
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError, DiskFullError, StoreLockedError
from rucola.grpc import kept_certificate
from rucola.grpc.kept_certificate import CERTIFICATE_FILE, KEY_FILE, kept_tls
from rucola.grpc.self_signed import names_of, pem_of
from rucola.grpc.server_options import GrpcServerOptions
from rucola.proxy.door_tls import door_tls
from rucola.runtime.files import Files

PEM = pem_of(names_of([]), valid_days=3650)
SHORT = pem_of(names_of(["old.example"]), valid_days=1)


def kept(directory: Path, *hosts: str) -> bytes:
    """Starts with the directory; returns the key and the certificate in it."""
    assert isinstance(kept_tls(str(directory), hosts).context, ssl.SSLContext)
    return (directory / KEY_FILE).read_bytes()


def parts(pem: bytes) -> tuple[bytes, x509.Certificate]:
    return pem.partition(b"-----BEGIN CERTIFICATE")[0], x509.load_pem_x509_certificate(pem)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def owned(folder: Path, name: str = "tls", pem: bytes = PEM) -> Path:
    """A directory with a key that was made earlier."""
    directory = folder / name
    directory.mkdir(mode=0o700)
    (directory / KEY_FILE).write_bytes(pem)
    (directory / KEY_FILE).chmod(0o600)
    return directory


def test_the_certificate_stays_over_restarts(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    first = kept(directory, "broker.example")
    assert (mode(directory), mode(directory / KEY_FILE)) == (0o700, 0o600)
    assert b"PRIVATE" not in (directory / CERTIFICATE_FILE).read_bytes()

    async def scene() -> None:
        tls = kept_tls(str(directory))
        async with served(Who(), GrpcServerOptions(tls=tls)) as server:
            shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))
            assert shown.encode() == (directory / CERTIFICATE_FILE).read_bytes()
            assert await ask(server.port, trusting()) == (b"True 127.0.0.1", "h2")
            assert await ask(server.port, None) == (b"False 127.0.0.1", None)

    asyncio.run(scene())
    assert (directory / KEY_FILE).read_bytes() == first


@pytest.mark.parametrize(("pem", "hosts"), [(SHORT, []), (PEM, ["new.example", "10.1.2.3"])])
def test_a_certificate_that_ends_or_lacks_a_name_is_replaced_with_the_same_key(
    tmp_path: Path, pem: bytes, hosts: list[str]
) -> None:
    directory = owned(tmp_path, pem=pem)
    key, before = parts(pem)
    now_key, now = parts(kept(directory, *hosts))
    assert key == now_key and now != before
    names = {str(name.value) for name in now.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}
    old = {str(name.value) for name in before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}
    assert names == old | set(hosts)
    assert (now.not_valid_after_utc - now.not_valid_before_utc).days >= 3650
    assert mode(directory / KEY_FILE) == 0o600
    assert kept(directory, *hosts) == (directory / KEY_FILE).read_bytes()


def as_link(directory: Path) -> None:
    directory.symlink_to(directory.parent / "elsewhere")


def of_another_user(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)


def writable(bits: int) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o700 | bits)

    return make


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (as_link, "is a symbolic link"),
        (os.mkfifo, "is a FIFO"),
        (lambda path: path.write_text("x"), "is a file"),
        (writable(0o020), "can be written by others"),
        (writable(0o002), "can be written by others"),
        (of_another_user, "belongs to another user"),
    ],
)
def test_directories_into_which_others_can_write(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    if make is of_another_user and os.geteuid():
        pytest.skip("only root gives directories away")
    (tmp_path / "elsewhere").mkdir()
    make(tmp_path / "tls")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"--tls-dir.*{reason}"):
        kept_tls(f"{tmp_path}/tls")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_cannot_be_made_or_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        kept_tls(f"{tmp_path}/absent/tls")
    assert not (tmp_path / "absent").exists()
    if os.geteuid():
        owned(tmp_path).chmod(0o000)
        with pytest.raises(ConfigError, match="Permission denied"):
            kept_tls(f"{tmp_path}/tls")
        (tmp_path / "tls").chmod(0o700)


OTHER = pem_of(names_of([]))
MIXED = parts(PEM)[0] + (OTHER[OTHER.index(b"-----BEGIN CERTIFICATE") :])


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, PEM[: len(PEM) // 2], parts(PEM)[0], PEM[len(parts(PEM)[0]) :], MIXED, b"x" * (65 * 1024)],
    ids=["empty", "noise", "half", "key alone", "certificate alone", "of another key", "huge"],
)
def test_a_file_that_is_no_key_with_its_certificate_stays(tmp_path: Path, content: bytes) -> None:
    """Another key in its place would be one that clients do not know; so somebody must look."""
    directory = owned(tmp_path, pem=content)
    with pytest.raises(ConfigError, match="--tls-dir"):
        kept_tls(str(directory))
    assert (directory / KEY_FILE).read_bytes() == content and not (directory / CERTIFICATE_FILE).exists()


def test_a_key_that_others_could_read(tmp_path: Path) -> None:
    directory = owned(tmp_path)
    (directory / KEY_FILE).chmod(0o640)
    with pytest.raises(ConfigError, match="only its owner can read"):
        kept_tls(str(directory))


@pytest.mark.few
@pytest.mark.parametrize("name", [KEY_FILE, CERTIFICATE_FILE, "lock"])
@pytest.mark.parametrize("kind", ["link", "FIFO", "directory"])
def test_entries_that_lead_elsewhere(tmp_path: Path, name: str, kind: str) -> None:
    directory, outside = owned(tmp_path), tmp_path / "outside"
    outside.write_bytes(PEM)
    outside.chmod(0o600)
    entry = directory / name
    entry.unlink(missing_ok=True)
    if kind == "link":
        entry.symlink_to(outside)
    elif kind == "FIFO":
        os.mkfifo(entry)
    else:
        entry.mkdir()
    with pytest.raises(ConfigError, match="--tls-dir"):
        kept_tls(str(directory))
    assert (outside.read_bytes(), mode(outside)) == (PEM, 0o600)
    assert entry.is_symlink() or entry.is_fifo() or entry.is_dir()


def test_what_an_interrupted_start_has_left(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "tls").mkdir(mode=0o700)
    for name in (KEY_FILE, CERTIFICATE_FILE):
        (tmp_path / "tls" / f"{name}.tmp").symlink_to(outside)
    assert kept(tmp_path / "tls")
    assert outside.read_text() == "mine" and not list((tmp_path / "tls").glob("*.tmp"))


def test_two_processes_at_once_have_one_certificate(tmp_path: Path) -> None:
    code = "import sys; from rucola.grpc.kept_certificate import kept_tls; kept_tls(sys.argv[1])"
    command = [sys.executable, "-c", f"{code}; print(open(sys.argv[1] + '/{KEY_FILE}').read())", f"{tmp_path}/tls"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate(timeout=60)[0] for process in both)
    assert first == second and re.match("-----BEGIN PRIVATE KEY", first)


def test_another_process_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(files: Files, path: str) -> None:
        raise StoreLockedError(path)

    monkeypatch.setattr(Files, "lock_directory", locked)
    pauses: list[float] = []
    with pytest.raises(ConfigError, match="locked"):
        kept_tls(str(owned(tmp_path)), pause=pauses.append)
    assert 5 <= sum(pauses) <= 15


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, content: bytes, position: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory, other = owned(tmp_path, pem=SHORT), tmp_path / "other"
    monkeypatch.setattr("rucola.runtime.files.write_all", full)
    for path in (directory, other):
        with pytest.raises(DiskFullError):
            kept_tls(str(path))
    assert (directory / KEY_FILE).read_bytes() == SHORT
    monkeypatch.undo()
    assert parts(kept(directory))[0] == parts(SHORT)[0] and kept(other)


def test_the_lock_ends_with_an_error(tmp_path: Path) -> None:
    directory = owned(tmp_path, pem=b"noise")
    for _ in range(2):
        with pytest.raises(ConfigError, match="without the file"):
            kept_tls(str(directory), pause=lambda _: pytest.fail("still locked"))


def test_where_the_option_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("rucola.proxy.door_tls.kept_tls", lambda path, hosts: asked.append((path, list(hosts))))
    door_tls(BrokerConfig(), "127.0.0.1", "front.example:7", "/keys")
    door_tls(BrokerConfig(), "192.0.2.1", "", "/keys")
    assert asked == [("/keys", ["front.example"]), ("/keys", ["192.0.2.1"])]
    pem = certificate(tmp_path, "server")
    config = TlsConfig(tls_cert_path=str(pem), tls_key_path=str(tmp_path / "server.key"))
    with pytest.raises(ConfigError, match="--tls-dir"):
        door_tls(config, "127.0.0.1", "", "/keys")
    monkeypatch.undo()
    assert main(["proxy", "-n", "127.0.0.1:1", "--port", "0", "--tls-dir", f"{tmp_path}/absent/tls"]) == 2
    assert "--tls-dir" in capsys.readouterr().err
    assert kept_certificate.OPTION == "grpcTlsDir"
