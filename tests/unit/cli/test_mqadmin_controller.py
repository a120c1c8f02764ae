"""``rucola mqadmin`` and the metrics of a controller, with brokers that register."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.brokers import run
from tests.unit.cli.shell import Capture
from tests.unit.controller.scene import Scene

from rucola.cli.controller_metrics import ControllerCollector, text_of
from rucola.cli.main import main

Shell = Callable[..., Awaitable[Any]]


def scene(capture: Capture, work: Callable[[Scene, Shell], Awaitable[None]]) -> None:
    async def play() -> None:
        async with Scene() as scene:

            async def shell(command: str, code: int = 0, as_rows: bool = True) -> Any:
                words = command.split()
                words[1:1] = ["-a", scene.controllers[0].address]
                flags = ["--json"] if as_rows else []
                found = await asyncio.to_thread(main, ["mqadmin", *flags, *words])
                printed = capture.readouterr()
                assert found == code, printed.err
                if code or not as_rows:
                    return printed.err if code else printed.out
                return [json.loads(line) for line in printed.out.splitlines()]

            await work(scene, shell)

    run(play())


def test_groups_and_elections(capsys: Capture) -> None:
    async def work(scene: Scene, shell: Shell) -> None:
        one, two = await scene.broker(1), await scene.broker(2)
        await one.elect()
        address = scene.controllers[0].address
        [facts] = await shell("getControllerMetaData")
        assert (facts["#ControllerLeaderAddress"], facts["#Peer"]) == (address, address)
        group, *members = await shell("getSyncStateSet -b a")
        assert group == {
            "#brokerName": "a",
            "#MasterBrokerId": 1,
            "#MasterAddr": one.address,
            "#MasterEpoch": 1,
            "#SyncStateSetEpoch": 1,
            "#SyncStateSetNums": 1,
        }
        assert members == [
            {"#BrokerId": 1, "#BrokerAddr": one.address, "#InSync": True, "#Alive": True},
            {"#BrokerId": 2, "#BrokerAddr": two.address, "#InSync": False, "#Alive": True},
        ]
        assert "2012 CONTROLLER_ELECT_MASTER_FAILED" in await shell("electMaster -c c -bn a -b 2", 1)
        body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
        assert (await scene.ask(1001, body, brokerName="a", masterBrokerId=1, masterEpoch=1)).code == 0
        elected, *members = await shell("electMaster -c c -bn a -b 2")
        assert (elected["#BrokerMasterAddr"], elected["#MasterEpoch"]) == (two.address, 2)
        assert [each["#BrokerAddr"] for each in members] == [one.address, two.address]
        assert "#MasterEpoch" in await shell("getSyncStateSet -b a", as_rows=False)
        assert "knows no brokers with the name b" in await shell("getSyncStateSet -b b", 1)
        text = text_of(ControllerCollector(scene.controllers[0]).collect())[0].decode()
        for line in (
            "rucola_controller_leader 1.0",
            "rucola_controller_groups 1.0",
            'rucola_controller_elections_total{outcome="new_master_elected"} 2.0',
            'rucola_controller_elections_total{outcome="no_master_elected"} 1.0',
            'rucola_controller_live_brokers{group="a"} 2.0',
            'rucola_controller_in_sync_brokers{group="a"} 1.0',
            'rucola_controller_master_epoch{group="a"} 2.0',
        ):
            assert line in text

    scene(capsys, work)


def test_brokers_are_removed_and_options_changed(capsys: Capture) -> None:
    async def work(scene: Scene, shell: Shell) -> None:
        one = await scene.broker(1)
        await one.elect()
        assert "code 2009" in await shell("cleanBrokerMetadata -bn a -c c -b 1", 1)
        assert "ids separated by ;" in await shell("cleanBrokerMetadata -bn a -c c -b one", 2)
        assert "because -l is not given" in await shell("cleanBrokerMetadata -bn a", 2)
        assert await shell("cleanBrokerMetadata -bn a -l") == [{"broker": "a", "ids": None}]
        assert (await scene.ask(1004, brokerName="a")).code == 2008
        await shell("updateControllerConfig -k scanInactiveMasterInterval -v 1000")
        [options] = await shell("getControllerConfig")
        assert options["scanInactiveMasterInterval"] == "1000"
        assert "code 16" in await shell("updateControllerConfig -k listenPort -v 1", 1)
        assert "because -c is given" in await shell("getSyncStateSet -c c", 2)
        assert "a broker's name or a cluster's name" in await shell("getSyncStateSet", 2)

    scene(capsys, work)
