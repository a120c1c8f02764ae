"""Which brokers the commands of ``rucola mqadmin`` administer, in a cluster of two brokers with a slave each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rucola.cli.mqadmin.target import AnyTarget, Target
from rucola.cli.mqadmin.topic import update_topic
from rucola.client.admin import AdminClient
from rucola.common.topic_config import TopicConfig
from rucola.errors import ClientError, ConfigError
from rucola.protocol.bodies.route import BrokerData, ClusterInfo

MASTERS, SLAVES = ["a:1", "b:1"], ["a:2", "b:2"]


class Admin(AdminClient):
    """Answers without a network; keeps what was changed."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.changed: list[tuple[str, ...]] = []
        self.api.change_topic = self.change_topic  # type: ignore[method-assign]
        self.api.put_kv_config = self.put_kv_config  # type: ignore[method-assign]

    async def cluster_info(self) -> ClusterInfo:
        brokers = {
            f"broker-{name}": BrokerData("C", f"broker-{name}", {0: f"{name}:1", 1: f"{name}:2"}) for name in "ab"
        }
        return ClusterInfo(brokers, {"C": [*brokers], "other": []})

    async def change_topic(self, address: str, config: TopicConfig, _attributes: str) -> None:
        self.changed.append((address, config.topic_name))

    async def put_kv_config(self, _address: str, _namespace: str, key: str, value: str) -> None:
        self.changed.append((key, value))


@pytest.mark.parametrize(
    ("broker", "cluster", "masters", "all_of_them"),
    [
        (None, None, MASTERS, ["a:1", "a:2", "b:1", "b:2"]),
        (None, "C", MASTERS, ["a:1", "a:2", "b:1", "b:2"]),
        (None, "other", [], []),
        ("b:2", None, ["b:2"], ["b:2"]),
        ("b:2", "C", ["b:2"], ["b:2"]),
    ],
)
def test_the_brokers_of_a_target(
    broker: str | None,
    cluster: str | None,
    masters: list[str],
    all_of_them: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        target = AnyTarget(Admin(), broker, cluster)
        assert await target.masters() == masters
        for slaves, expected in ((False, masters), (True, all_of_them)):
            asked: list[str] = []
            await target.change(_noting(asked), lambda address: f"changed {address}", slaves=slaves)
            assert asked == expected
            assert capsys.readouterr().out.splitlines() == [f"changed {address}" for address in expected]

    asyncio.run(work())


def _noting(asked: list[str]) -> Callable[[str], Awaitable[None]]:
    async def note(address: str) -> None:
        asked.append(address)

    return note


def test_a_target_names_a_broker_or_a_cluster() -> None:
    with pytest.raises(ConfigError, match="-b or -c"):
        Target(Admin(), None, None)
    with pytest.raises(ClientError, match="cluster none does not exist; existing clusters: C, other"):
        asyncio.run(Target(Admin(), None, "none").masters())


@pytest.mark.parametrize(
    ("broker", "cluster", "addresses", "order"),
    [("b:1", None, ["b:1"], "broker-b:8"), (None, "C", MASTERS, "broker-a:8;broker-b:8")],
)
def test_an_ordered_topic_is_ordered_on_the_brokers_that_got_it(
    broker: str | None, cluster: str | None, addresses: list[str], order: str
) -> None:
    async def work() -> None:
        admin = Admin()
        await update_topic(Target(admin, broker, cluster), "T", order="true")
        assert admin.changed == [*((address, "T") for address in addresses), ("T", order)]

    asyncio.run(work())
