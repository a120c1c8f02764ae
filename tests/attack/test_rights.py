"""The tables of rights in docs/security.md, asked cell by cell: what they say is what servers do.

The expectation comes from the words of the page, which this file reads with a grammar of its own. No rule of the server
is consulted.
"""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from tests.attack.guarded import ADMIN, DENIED, Guarded, signed, write_accounts
from tests.brokers import properties_text, run

from rucola.cli.broker_server import health_of
from rucola.cli.http import HttpServer
from rucola.cli.namesrv_access import NamesrvAccess
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.runtime.clock import SystemClock

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
OWNER = ("owner-account", "the-secret-of-the-owner")
DEFAULT = ("default-account", "the-secret-of-defaults")
LOW = ("low-account", "the-secret-of-the-low-one")
OTHER = ("other-account", "the-secret-of-the-other-one")
ACCOUNTS = f"""accounts:
  - {{accessKey: {ADMIN[0]}, secretKey: {ADMIN[1]}, admin: true}}
  - {{accessKey: {OWNER[0]}, secretKey: {OWNER[1]}, topicPerms: [Own=PUB|SUB], groupPerms: [GOwn=SUB]}}
  - {{accessKey: {OTHER[0]}, secretKey: {OTHER[1]}, topicPerms: [Foreign=PUB|SUB], groupPerms: [GForeign=SUB]}}
  - {{accessKey: {LOW[0]}, secretKey: {LOW[1]}}}
  - {{accessKey: {DEFAULT[0]}, secretKey: {DEFAULT[1]}, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}
"""
SENDERS = {"no account": None, "low account": LOW, "owner": OWNER, "all by default": DEFAULT, "administrator": ADMIN}
UNKNOWN_CODES = (0, 9999, -1)
HEARD = {
    "HEART_BEAT": lambda it: {"clientID": "@me", "consumerDataSet": [it.consumer]},
    "CHECK_CLIENT_CONFIG": lambda it: {"clientId": "@me", "group": it.group, "subscriptionData": {"topic": it.topic}},
    "LOCK_BATCH_MQ": lambda it: {"consumerGroup": it.group, "clientId": "@me", "mqSet": [it.queue]},
    "UNLOCK_BATCH_MQ": lambda it: {"consumerGroup": it.group, "clientId": "@me", "mqSet": [it.queue]},
    "QUERY_ASSIGNMENT": lambda it: {"consumerGroup": it.group, "topic": it.topic},
    "LITE_SUBSCRIPTION_CTL": lambda it: {"subscriptionSet": [it.lite_entry]},
    "BATCH_ACK_MESSAGE": lambda it: {"acks": [{"c": it.group, "t": it.topic}]},
}
"""Bodies of the requests whose objects stand in the body."""


@dataclass(frozen=True)
class Objects:
    """What one column of cells is about."""

    topic: str
    group: str
    offset: str
    """Physical offset of a message of ``topic``."""

    @property
    def consumer(self) -> dict[str, object]:
        return {"groupName": self.group, "subscriptionDataSet": [{"topic": self.topic}]}

    @property
    def lite_entry(self) -> dict[str, object]:
        return {
            "action": "PARTIAL_ADD",
            "clientId": "@me",
            "group": self.group,
            "topic": self.topic,
            "liteTopicSet": ["a"],
            "version": 0,
        }

    @property
    def queue(self) -> dict[str, object]:
        return {"topic": self.topic, "brokerName": "broker-a", "queueId": 0}


def rows(heading: str) -> Iterator[tuple[str, int, str]]:
    """Name, code and needs of each row of the table that begins with ``heading``."""
    table = PAGE.read_text().split(f"| {heading} |")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[1]:
            yield cells[0].strip("`"), int(cells[1]), cells[2]


def request(name: str, code: int, needs: str, it: Objects, sender: str) -> RemotingCommand:
    """A request about these objects, as far as the words in the table tell. Each sender is a client of its own."""
    fields = dict.fromkeys(re.findall(r"topic `(\w+)`", needs), it.topic)
    fields |= dict.fromkeys(re.findall(r"group `(\w+)`", needs), it.group)
    fields |= dict.fromkeys(re.findall(r"message at `(\w+)`", needs), it.offset)
    fields.setdefault("topic", it.topic)
    body = orjson.dumps(HEARD[name](it)).replace(b"@me", sender.encode()) if name in HEARD else b""
    return RemotingCommand(code, ext_fields=fields, body=body)


def may(needs: str, sender: str, objects: str) -> bool:
    """Whether the page grants the request."""
    if sender in ("no account", "low account") or needs == "administrator":
        return sender == "administrator"
    if "reply topic" in needs:  # no object of the test is one; test_identity has those
        return False
    if sender == "owner":
        foreign = {"own": (), "topic foreign": ("topic",), "group foreign": ("group",)}.get(objects, ("topic", "group"))
        return not any(word in needs for word in foreign)
    if sender == "all by default":  # defaults do not apply to system topics, and there must be a message
        named = "topic" in needs.replace("topic of the message", "")
        return not (objects == "internal" and named) and not (objects == "absent" and "message at" in needs)
    return True


class Cells:
    """Asks for cells, and collects those whose answer is not the expected one."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = RemotingClient()
        self.count = 0
        self.wrong: list[str] = []

    async def ask(self, command: RemotingCommand, account: tuple[str, str] | None) -> tuple[bool, str]:
        """Whether access was denied, and the text of the answer."""
        sent = command if account is None else signed(command, account)
        answer = await self._client.invoke(self._address, sent, 10_000)
        text = answer.remark or ""
        return answer.code == DENIED and text.startswith("access denied"), text

    async def check(self, cell: str, command: RemotingCommand, account: tuple[str, str] | None, granted: bool) -> str:
        self.count += 1
        denied, text = await self.ask(command, account)
        if denied == granted:
            self.wrong.append(f"{cell}: {'granted' if granted else 'denied'} is expected, the answer is {text!r}")
        return text

    async def close(self) -> None:
        await self._client.close()


async def prepared(cluster: Guarded) -> dict[str, Objects]:
    """Topics, groups and one message of each kind of object."""
    await cluster.made("Own", "Foreign")
    for group in ("GOwn", "GForeign"):
        await cluster.as_account(ADMIN, RemotingCommand(200, body=orjson.dumps({"groupName": group})))
    offsets = {}
    waiting = {"DELAY": "3", "UNIQ_KEY": "U"}
    for kind, account, topic, more in (
        ("own", OWNER, "Own", {}),
        ("foreign", OTHER, "Foreign", {}),
        ("internal", OTHER, "Foreign", waiting),  # it waits in SCHEDULE_TOPIC_XXXX
    ):
        offsets[kind] = str(cluster.broker.store.max_offset)
        text = properties_text(**{"UNIQ_KEY": kind, **more})
        assert await cluster.code(account, cluster.send_command(topic, properties=text)) == 0
    return {
        "own": Objects("Own", "GOwn", offsets["own"]),
        "foreign": Objects("Foreign", "GForeign", offsets["foreign"]),
        "internal": Objects("SCHEDULE_TOPIC_XXXX", "CID_RMQ_SYS_TRANS", offsets["internal"]),
        "absent": Objects("Absent", "GAbsent", "99999999"),
        "topic foreign": Objects("Foreign", "GOwn", offsets["foreign"]),
        "group foreign": Objects("Own", "GForeign", offsets["own"]),
    }


def test_s39_each_cell_of_the_broker_s_table(tmp_path: Path) -> None:
    listed = list(rows("request to a broker"))
    codes = {code for _, code, _ in listed}
    listed += [(code.name, int(code), "administrator") for code in RequestCode if code not in codes]
    listed += [("unknown", code, "administrator") for code in UNKNOWN_CODES]

    async def body() -> None:
        async with Guarded(tmp_path, ACCOUNTS) as cluster:
            objects = await prepared(cluster)
            cells = Cells(cluster.broker.address)
            stored = cluster.broker.store.stats.put_messages
            for sender, account in list(SENDERS.items())[:-1]:
                for name, code, needs in listed:
                    texts = {}
                    for kind, it in objects.items():
                        cell = f"{name} x {sender} x {kind}"
                        command = request(name, code, needs, it, sender)
                        texts[kind] = await cells.check(cell, command, account, may(needs, sender, kind))
                        for object_name in (it.topic, it.group):
                            texts[kind] = texts[kind].replace(object_name, "it")
                    if sender != "all by default" and texts["foreign"] != texts["absent"]:
                        cells.wrong.append(
                            f"{name} x {sender}: foreign {texts['foreign']!r}, absent {texts['absent']!r}"
                        )
                if sender in ("no account", "low account"):
                    assert cluster.broker.store.stats.put_messages == stored
            for name, code, needs in listed:  # at the end, because some of these change what the others are about
                for kind in ("absent", "foreign", "internal", "own"):
                    command = request(name, code, needs, objects[kind], "administrator")
                    await cells.check(f"{name} x administrator x {kind}", command, ADMIN, granted=True)
            await cells.close()
            assert cells.wrong == []
            assert cells.count == (4 * 6 + 4) * len(listed)

    run(body())
    assert {name for name, _, needs in listed if "every" in needs or "its " in needs} <= set(HEARD), "bodies to build"


def test_s39_each_cell_of_the_name_server_s_table(tmp_path: Path) -> None:
    listed = list(rows("request to a name server"))
    assert {needs for _, _, needs in listed} == {"nothing", "administrator"}
    codes = {code for _, code, _ in listed}
    listed += [(code.name, int(code), "administrator") for code in RequestCode if code not in codes]
    listed += [("unknown", code, "administrator") for code in UNKNOWN_CODES]

    async def body() -> None:
        write_accounts(tmp_path, ACCOUNTS)
        async with Guarded(tmp_path / "broker", ACCOUNTS) as cluster:
            access = NamesrvAccess(cluster.access.snapshot, SystemClock(), insecure=False)
            namesrv = NameServer(NamesrvConfig(listen_port=0), judge=access.judge)
            await namesrv.start()
            cells = Cells(namesrv.address)
            for sender, account in SENDERS.items():
                for name, code, needs in listed:
                    for topic in ("Own", "Foreign", "SCHEDULE_TOPIC_XXXX", "Absent"):
                        granted = needs == "nothing" or sender == "administrator"
                        command = RemotingCommand(code, ext_fields={"topic": topic, "namespace": topic, "key": topic})
                        await cells.check(f"{name} x {sender} x {topic}", command, account, granted)
            await cells.close()
            await namesrv.shutdown()
            assert cells.wrong == []
            assert cells.count == 20 * len(listed)

    run(body())


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_s39_the_http_port_only_shows_health_and_metrics(tmp_path: Path, method: str) -> None:
    """It knows no accounts: everybody who reaches it gets the same, and neither content of messages nor secrets."""

    async def body() -> None:
        async with Guarded(tmp_path, ACCOUNTS) as cluster:
            await prepared(cluster)
            http = HttpServer("127.0.0.1", 0)
            http.bind()
            http.start(health_of(cluster.broker))
            for path in ("/", "/livez", "/readyz", "/metrics", "/Own", "/config", "/../conf/plain_acl.yml"):
                status, text = await asyncio.to_thread(fetched, f"http://{http.address}{path}", method)
                assert (status == 200) == (path in ("/livez", "/readyz", "/metrics") and method == "GET"), path
                assert not any(secret.encode() in text for _, secret in (ADMIN, OWNER, OTHER, LOW))
            await http.stop()

    run(body())


def fetched(url: str, method: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
