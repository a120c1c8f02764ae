"""Accounts and TLS with the official Java clients: ``python -m tests.conformance.guarded``.

The same program runs against our broker and the official one of 4.9.7, which is the last published version with
``plain_acl.yml``. With each broker, it runs over plain connections and over TLS, on the same port. The exit status is
the same as for ``tests.conformance.run``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from tests.conformance.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from tests.conformance.program import ScenarioProgram
from tools.peers.packages import PEERS, PeerError, java_program, need
from tools.peers.servers import JavaServers, RucolaServers, Servers

HERE = Path(__file__).resolve().parent
VERSIONS = ("5.3.3", "4.9.8")
OFFICIAL = "4.9.7"
TIMEOUT_S = 300
ACCOUNT = """accounts:
  - accessKey: alice-account
    secretKey: a-secret-of-the-tests
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
{topics}
      # nothing more
    groupPerms:
{groups}
"""
SETTINGS = {"aclEnable": "true", "autoCreateTopicEnable": "true", "autoCreateSubscriptionGroup": "true"}


def main(arguments: list[str]) -> int:
    """Runs every client against both brokers, plain and over TLS."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.guarded", description=__doc__)
    parser.add_argument("--target", action="append", choices=["rucola", "java"])
    parser.add_argument("--version", action="append", choices=VERSIONS)
    options = parser.parse_args(arguments)
    console = Console()
    passed = True
    try:
        for name in options.target or ("rucola", "java"):
            prefixes = {
                f"G{number}{int(tls)}_": (version, tls)
                for number, version in enumerate(options.version or VERSIONS)
                for tls in (False, True)
            }
            with _servers(name, list(prefixes)) as target:
                accounts = _home(target) / "conf" / "plain_acl.yml"
                for prefix, (version, tls) in prefixes.items():
                    arguments = [target.namesrv, prefix, str(accounts), str(tls).lower()]
                    passed &= _run(version, arguments, target, console, name)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 0 if passed else 1


def _servers(name: str, prefixes: list[str]) -> Servers:
    """Returns servers with accounts and a certificate, not started yet."""
    target: Servers
    if name == "rucola":
        target = RucolaServers("async", settings=SETTINGS)
    else:
        target = JavaServers("async", version=OFFICIAL, settings=SETTINGS)
    home = _home(target)
    (home / "conf").mkdir(parents=True)
    topics = [f"      - {p}{rule}" for p in prefixes for rule in ("Open=PUB|SUB", "ReadOnly=SUB", "Shut=DENY")]
    groups = [f"      - {prefix}Group=SUB" for prefix in prefixes]
    text = ACCOUNT.format(topics="\n".join(topics), groups="\n".join(groups))
    (home / "conf" / "plain_acl.yml").write_text(text)
    for part in ("namesrv", "broker"):  # servers of 4.9 do not start without logging files
        (home / "conf" / f"logback_{part}.xml").write_text("<configuration/>\n")
    make_certificates(home)
    cert, key = str(home / CERTIFICATE), str(home / KEY)
    if name == "rucola":
        target.settings |= {"rocketmqHome": str(home), "tlsMode": "permissive", "tlsCertPath": cert, "tlsKeyPath": key}
    else:
        options = {"mode": "permissive", "certPath": cert, "keyPath": key}
        words = [f"-Dtls.server.{option}={value}" for option, value in options.items()]
        os.environ["JAVA_TOOL_OPTIONS"] = " ".join([*words, "-Dtls.test.mode.enable=false"])
    return target


def _home(target: Servers) -> Path:
    """Makes the ``ROCKETMQ_HOME`` directory of the official broker."""
    return target.store.parent / "home"


def _run(version: str, arguments: list[str], target: Servers, console: Console, name: str) -> bool:
    java = need("java", "install Java 17 to run the official Java client")
    command = [java, "-Xmx512m", f"-Duser.home={PEERS}", "-Drocketmq.client.logLevel=ERROR"]
    command += ["-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"]
    command += [f"-Dtls.client.trustCertPath={_home(target) / AUTHORITY}"]
    command += ["-cp", java_program(HERE / "java", version), "scenarios.Guarded", *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_TOOL_OPTIONS"}
    good, count = True, 0
    with ScenarioProgram(command, target, TIMEOUT_S, environment) as program:
        for line in program.outcomes():
            good, count = good and bool(line["ok"]), count + 1
            mark = "[green]ok  [/]" if line["ok"] else "[red]FAIL[/]"
            console.print(f"{mark} {name:6} java {version} {line['name']:18} ", end="")
            console.print(json.dumps(line["details"]), markup=False, highlight=False, soft_wrap=True)
    if count == 0 or (good and program.code != 0):
        console.print(f"[red]FAIL[/] {name} java {version}: {program.errors()[-1500:]}", soft_wrap=True)
        return False
    return good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
