"""Defects and odd values at the edges of the client: nothing hangs, and the peer gets an answer."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.unit.remoting.test_client import HOUR_MS, Peer, ScriptedServer, echo_all

from rucola.errors import RemotingConnectError
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.testing.event_loop import run_stepped, settle


@pytest.mark.parametrize("error", [RuntimeError("odd"), OverflowError("port"), TypeError()], ids=repr)
def test_every_failure_to_open_a_connection_is_a_connect_error(error, monkeypatch):
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        create_connection, failures = loop.create_connection, [error]

        async def create(*arguments: object, **options: object) -> object:
            if failures:
                raise failures.pop()
            return await create_connection(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "create_connection", create)
        client = RemotingClient()
        async with ScriptedServer(echo_all) as server:
            with pytest.raises(RemotingConnectError, match=str(error) or "TypeError"):
                await client.invoke(server.address, RemotingCommand(34), HOUR_MS)
            assert (await client.invoke(server.address, RemotingCommand(34, body=b"again"), HOUR_MS)).body == b"again"
        await client.close()

    run_stepped(scene())


def test_an_answer_that_cannot_be_encoded_becomes_an_error_answer(caplog):
    async def scene() -> None:
        answers: list[RemotingCommand] = []
        done = asyncio.Event()

        async def ask(peer: Peer) -> None:
            await peer.take()
            peer.give(RemotingCommand(221, 1))
            answers.append(await peer.take())
            done.set()
            await peer.take()

        client = RemotingClient()
        client.register_processor(221, lambda address, command: command.answer(0, "a lone surrogate: \udcff"))
        async with ScriptedServer(ask) as server:
            client.invoke_oneway(server.address, RemotingCommand(34))
            await done.wait()
            await client.close()
        assert answers[0].code == 1
        assert "surrogates not allowed" in answers[0].remark

    run_stepped(scene())
    assert [record.rucola_event for record in caplog.records] == ["request failed"]


def test_the_failure_of_background_work_is_logged(caplog):
    async def scene() -> None:
        async def fails() -> None:
            raise ValueError("a defect")

        client = RemotingClient()
        client.run(fails())
        await settle()
        assert client.tasks == set()
        await client.close()

    run_stepped(scene())
    (record,) = caplog.records
    assert (record.levelno, record.rucola_event) == (logging.ERROR, "background work of the client failed")
    assert isinstance(record.exc_info[1], ValueError)
