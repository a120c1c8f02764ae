"""``rucola mqadmin``'s commands for lite topics; ``tests.unit.broker.lite.test_admin`` tests the answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.brokers import Cluster, run
from tests.unit.broker.lite.test_admin import LITE, made
from tests.unit.cli.shell import Capture

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.run import run as mqadmin


def test_all_commands(tmp_path: Path, capsys: Capture) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, stores=LITE) as cluster:
            await made(cluster)

            async def shell(text: str, code: int = 0) -> str:
                name, *others = text.split()
                arguments = [name, "-n", cluster.namesrv.address, *others]
                assert await asyncio.to_thread(mqadmin, arguments) == code, capsys.readouterr()
                printed = capsys.readouterr()
                return printed.out + printed.err

            info = await shell("getBrokerLiteInfo -d")
            assert "20000" in info and "gateway small" in info and cluster.broker.address in info
            parent = (await shell("getParentTopicInfo -p agents")).split("\n")[1].split()
            assert parent[:4] == ["broker-a", "60", "5", "5"] and set(parent[4:]) == {"gateway", "small"}
            topic = await shell("getLiteTopicInfo -p agents -l session-2 -s")
            assert topic.split("\n")[1].split()[1:3] == ["0", "2"] and "gateway" in topic
            client = await shell("getLiteClientInfo -p agents -g gateway -c c -s")
            assert "%LMQ%$agents$session-1" in client
            assert "N/A" in await shell("getLiteClientInfo -p agents -g gateway -c nobody")
            group = await shell("getLiteGroupInfo -p agents -g gateway -k 1")
            assert "= 6" in group and "session-4" in group and "session-3" not in group
            one = await shell("getLiteGroupInfo -p agents -g gateway -l session-3")
            assert one.split("\n")[1].split()[1:4] == ["3", "1", "2"]
            assert "success" in await shell("triggerLiteDispatch -p agents -g gateway -c c")
            listed = (await shell("liteTopicList -p agents -x session- -g gateway -m 3")).strip().split("\n")
            assert [line.split()[1:6] for line in listed[1:]] == [
                ["session-1", "0", "1", "1", "0"],
                ["session-2", "0", "2", "1", "1"],
                ["session-3", "0", "3", "1", "2"],
            ]
            assert "type not match" in await shell("getParentTopicInfo -p plain", code=1)
            assert "not exist" in await shell("getLiteGroupInfo -p agents -g nobody", code=1)

    output.JSON.set(False)
    run(scene())
