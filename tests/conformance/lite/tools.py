"""The lite commands of ``mqadmin`` 5.5.0 and of ``rucola mqadmin``, each at the official broker and at Rucola's:
``python -m tests.conformance.lite.tools``.

Both brokers get the same parents, groups, messages and subscriptions. A tool must say the same of both, unless
``EXPLAINED`` says why not. Exit status: 0 if so, 1 if not, 2 if the set-up failed.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field

from tests.conformance.lite.agents import Admin
from tests.conformance.lite.compare import differences, masked
from tests.conformance.lite.explained import Explained, judged
from tests.conformance.lite.record import SETTINGS, VERSION
from tests.conformance.lite.recording import Recording
from tests.conformance.lite.scripted import ACK, Lease, Remote, entry
from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers, RucolaServers, Servers
from tools.peers.wire import wait_for_route

from rucola.cli.main import main as rucola
from rucola.sync import Message, Producer

PARENT, PLAIN, GROUP, ALL, CLIENT = "agents", "plain", "gateway", "all", "the-client"
OFFICIAL, OURS = "mqadmin 5.5.0", "rucola mqadmin"
LITE = {key: SETTINGS[key] for key in ("enableLmq", "enableMultiDispatch", "autoCreateSubscriptionGroup")}
BROKER_INFO = "getBrokerLiteInfo"
CLIENT_INFO = f"getLiteClientInfo -p {PARENT} -g {GROUP} -c {CLIENT} -s"
GROUP_INFO = f"getLiteGroupInfo -p {PARENT} -g {GROUP}"
TABLE_SIZES = (
    r"ADDRESS STORE 20000 4 2( \d){4}|"
    r'{"Broker":"ADDRESS","Store Type":"STORE","Max LMQ":20000,"Current LMQ":4,"Subscription Count":2,'
    r'("[\w ]+":\d,?){4}}'
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    (BROKER_INFO,),
    (BROKER_INFO, "-d"),
    ("getParentTopicInfo", "-p", PARENT),
    ("getParentTopicInfo", "-p", PLAIN),
    ("getParentTopicInfo", "-p", "nowhere"),
    ("getLiteTopicInfo", "-p", PARENT, "-l", "session-1", "-s"),
    ("getLiteTopicInfo", "-p", PARENT, "-l", "no-such", "-s"),
    ("getLiteTopicInfo", "-p", PLAIN, "-l", "session-1"),
    ("getLiteClientInfo", "-p", PARENT, "-g", GROUP, "-c", CLIENT, "-s"),
    ("getLiteClientInfo", "-p", PARENT, "-g", GROUP, "-c", "nobody"),
    ("getLiteClientInfo", "-p", PLAIN, "-g", GROUP, "-c", CLIENT),
    ("getLiteGroupInfo", "-p", PARENT, "-g", GROUP),
    ("getLiteGroupInfo", "-p", PARENT, "-g", GROUP, "-l", "session-1"),
    ("getLiteGroupInfo", "-p", PARENT, "-g", GROUP, "-l", "no-such", "-k", "3"),
    ("getLiteGroupInfo", "-p", PARENT, "-g", "nobody"),
    ("triggerLiteDispatch", "-p", PARENT, "-g", GROUP),
    ("triggerLiteDispatch", "-p", PARENT, "-g", GROUP, "-c", CLIENT),
    ("triggerLiteDispatch", "-p", PARENT, "-g", "nobody"),
)
BY_TIME = "lags by time are told without `liteLagLatencyCollectEnable`"
EXPLAINED = tuple(
    Explained(command, theirs, ours, why)
    for commands, theirs, ours, why in (
        ((BROKER_INFO, f"{BROKER_INFO} -d"), TABLE_SIZES, TABLE_SIZES, "tables of the broker itself have other sizes"),
        ((CLIENT_INFO,), r"broker-a 2 TIME N/A", r"broker-a 2 TIME TIME", "the time of the last delivery is known"),
        ((CLIENT_INFO,), r'(.*"Last Consume Time":)"N/A"}', r'(.*"Last Consume Time":)"TIME"}',
         "the time of the last delivery is known"),
        ((GROUP_INFO,), r"", r"1 session-1 2 TIME", BY_TIME),
        ((GROUP_INFO,), r"", r'{"Waiting Longest":1,"Lite Topic":"session-1","Lag Count":2,.*"TIME"}', BY_TIME),
        ((GROUP_INFO,), r'{.*"Min Unconsumed Timestamp":"-"}', r'{.*"Min Unconsumed Timestamp":"TIME"}', BY_TIME),
    )
    for command in commands
)  # fmt: skip
"""What a tool says otherwise of Rucola's broker, and why."""
_MASKS = (
    (re.compile(r"\b(default\w*|rucola)\b"), "STORE"),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"(answered code \d+ \w+): .*"), r"\1"),
)


@dataclass
class Said:
    """What the two tools said of one broker, by command."""

    lines: dict[tuple[str, str], list[str]] = field(default_factory=dict)


def prepare(servers: Servers) -> None:
    """Makes parents, groups, messages, and a client that has read a part."""
    for command in (
        ("updateTopic", "-t", PARENT, "-r", "1", "-w", "1", "-a", "+message.type=LITE,+lite.topic.expiration=60"),
        ("updateTopic", "-t", PLAIN, "-r", "1", "-w", "1"),
        ("updateSubGroup", "-g", GROUP, "--attributes", f"+lite.bind.topic={PARENT}"),
        ("updateSubGroup", "-g", ALL, "--attributes", f"+lite.bind.topic={PARENT},+lite.sub.wildcard=true"),
    ):
        code, lines = ours(servers, (*command, "-b", servers.broker))
        if code:
            raise PeerError(f"{' '.join(command)} ended with {code}: {lines}")
    for topic in (PARENT, PLAIN):
        wait_for_route(servers.namesrv, topic)
    with Producer("sender", servers.namesrv) as producer, Remote(servers.broker) as link:
        for number in range(3):
            producer.send(Message(PARENT, b"x", lite_topic="session-1"))
            producer.send(Message(PARENT, b"x", lite_topic=f"other-{number}"))
        link.subscription(entry("PARTIAL_ADD", CLIENT, GROUP, PARENT, "session-1"))
        answer = link.pop(CLIENT, GROUP, PARENT, maxMsgNum=1, invisibleTime=600_000, pollTime=10_000)
        link.settle(ACK, answer, Lease(GROUP, PARENT, "session-1"), 0)
        link.subscription(entry("PARTIAL_ADD", CLIENT, GROUP, PARENT, "other-0"))
        time.sleep(1)


def ours(servers: Servers, command: tuple[str, ...]) -> tuple[int, list[str]]:
    """Runs ``rucola mqadmin``; returns its exit code and the lines it printed."""
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        code = rucola(["mqadmin", "--json", *command, "-n", servers.namesrv])
    return code, (printed.getvalue() + errors.getvalue()).splitlines()


def ask(servers: Servers) -> Said:
    """Runs all commands with both tools."""
    said = Said()
    with Admin(servers.broker, servers.namesrv, VERSION, Recording()) as official:
        for command in COMMANDS:
            name = " ".join(command)
            said.lines[OFFICIAL, name] = official.run(*command).splitlines()
            at_broker = ("-b", servers.broker) if command[0] == BROKER_INFO else ()
            code, lines = ours(servers, (*command, *at_broker))
            said.lines[OURS, name] = [f"exit code {code}", *lines]
    return said


def plain(lines: list[str]) -> list[str]:
    """Lines without what no two brokers have in common."""
    found = []
    for line in filter(None, map(masked, lines)):
        text = line
        for pattern, instead in _MASKS:
            text = pattern.sub(instead, text)
        found.append(text)
    return found


def table(theirs: Said, found: Said) -> Iterator[str]:
    """The lines of a Markdown table, and what differs without an explanation."""
    yield from (f"| command | {OFFICIAL} | {OURS} | why |", "|---|---|---|---|")
    unlike = []
    for command in map(" ".join, COMMANDS):
        verdicts = []
        for tool in (OFFICIAL, OURS):
            before, after = (plain(said.lines[tool, command]) for said in (theirs, found))
            verdicts.append(judged(command, len(after), differences(before, after), EXPLAINED))
        words = " | ".join(one.word for one in verdicts)
        yield f"| `{command}` | {words} | {'; '.join(dict.fromkeys(why for one in verdicts for why in one.reasons))} |"
        unlike += [f"\n{command}:\n{difference}" for one in verdicts for difference in one.unexplained]
    yield from unlike


def main() -> int:
    """Asks both brokers and prints a table."""
    said: list[Said] = []
    try:
        for servers in (JavaServers(version=VERSION, settings=LITE), RucolaServers(settings=LITE)):
            with servers:
                prepare(servers)
                said.append(ask(servers))
    except PeerError as error:
        print(f"lite: {error}", file=sys.stderr)
        return 2
    lines = list(table(*said))
    print(*lines, sep="\n")
    return int(any("DIFFERENT" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
