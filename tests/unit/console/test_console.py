"""Life of a console: its directory, its port, a real request, and a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.brokers import run
from tests.unit.console.visitor import Visitor, console_of

from rucola.console import Console, ConsoleConfig
from rucola.errors import AddressInUseError, ConfigError, DiskError

NOWHERE = "127.0.0.1:1"


def test_two_consoles_share_no_directory_and_no_port(tmp_path: Path) -> None:
    async def work() -> None:
        async with console_of(NOWHERE, tmp_path) as console:
            with pytest.raises(ConfigError, match="no other console"):
                await Console(ConsoleConfig(clusters=NOWHERE, port=0, data=str(tmp_path / "console"))).start()
            port = int(console.address.rpartition(":")[2])
            with pytest.raises(AddressInUseError, match="--port"):
                await Console(ConsoleConfig(clusters=NOWHERE, port=port, data=str(tmp_path / "other"))).start()
        async with console_of(NOWHERE, tmp_path):
            pass  # the directory is free again

    run(work())


def test_a_directory_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def work() -> None:
        with pytest.raises((DiskError, ConfigError)):
            await Console(ConsoleConfig(clusters=NOWHERE, port=0, data=str(tmp_path / "file" / "data"))).start()

    run(work())


def test_it_serves_http_and_keeps_its_files_to_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with console_of(NOWHERE, tmp_path) as console:
            host, _, port = console.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"GET /static/console.css HTTP/1.1\r\nHost: {console.address}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200") and b"content-security-policy:" in answer.lower()
            assert (tmp_path / "console").stat().st_mode & 0o777 == 0o700
            assert (tmp_path / "console" / "history.sqlite").stat().st_mode & 0o777 == 0o600

    run(work())


def test_a_session_does_not_survive_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        async with console_of(NOWHERE, tmp_path) as console:
            visitor = Visitor(console)
            csrf = await visitor.csrf()
            cookies = dict(visitor.cookies)
        async with console_of(NOWHERE, tmp_path) as console:
            again = Visitor(console)
            again.cookies = cookies
            answer = await again.post("/view", {"csrf": csrf, "language": "zh", "back": "/"})
            assert answer.status == 403

    run(work())


def test_behind_a_proxy_under_a_path(tmp_path: Path) -> None:
    async def work() -> None:
        async with console_of(NOWHERE, tmp_path, public_url="http://ops.example.org/rucola", insecure=True) as console:
            visitor = Visitor(console, host="ops.example.org")
            answer = await visitor.get("/rucola/")
            assert answer.headers["location"] == "/rucola/cluster/"
            for path in ("/rucola/cluster/", "/cluster/"):  # a proxy may strip the path
                page = (await visitor.get(path)).page
                assert all(link.startswith(("/rucola/", "#", "?")) for link in page.links), page.links
            assert (
                "Path=/rucola/"
                in (await Visitor(console, host="ops.example.org").get("/cluster/")).headers["set-cookie"]
            )
            assert (await Visitor(console, host="other.example.org").get("/rucola/cluster/")).status == 421

    run(work())
