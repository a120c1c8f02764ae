"""Accounts, address patterns and signatures: requests of RocketMQ's clients, and the meaning of its files."""

from __future__ import annotations

import json
import lzma
from base64 import b64decode
from pathlib import Path

import pytest

from rucola.broker.acl.address_strategy import parse_addresses, segments_of
from rucola.broker.acl.permission import DENY, PUB, SUB, Account, group, topic
from rucola.broker.acl.plain_file import read_accounts, read_document, write_document
from rucola.errors import FormatError
from rucola.protocol.command import decode_frame
from rucola.protocol.signature import SIGNATURE, equal, legacy_signature

FRAMES = Path(__file__).resolve().parents[2] / "golden" / "frames"


@pytest.mark.parametrize("name", ["java498_acl1_allowed", "java533_acl1_allowed", "acl1_admin"])
def test_signatures_of_official_clients(name: str) -> None:
    lines = lzma.decompress((FRAMES / f"{name}.jsonl.xz").read_bytes()).splitlines()
    checked = 0
    for line in lines[1:]:
        record = json.loads(line)
        if record.get("kind") != "request" or not record["dir"].startswith("client"):
            continue
        header = decode_frame(b64decode(record["frame"]))
        given = header.ext_fields[SIGNATURE]
        expected = legacy_signature(b"12345678", header.ext_fields, header.body, header.version)
        assert equal(given, expected), record["n"]
        assert not equal(given, legacy_signature(b"12345679", header.ext_fields, header.body, header.version))
        checked += 1
    assert checked > 5


def test_fields_are_signed_in_the_order_of_java_texts() -> None:
    astral, private = "\U00010000", "\ue000"  # code points and UTF-16 units give opposite orders
    fields = {private: "2", astral: "1", "a": "0"}
    assert legacy_signature(b"k", fields, b"", 479) == legacy_signature(b"k", {"x": "012"}, b"", 479)


@pytest.mark.parametrize(("version", "signed"), [(399, False), (400, True)])
def test_the_field_that_old_clients_do_not_sign(version: int, signed: bool) -> None:
    with_field = legacy_signature(b"k", {"a": "0", "_UNIQUE_KEY_QUERY": "true"}, b"", version)
    assert (with_field != legacy_signature(b"k", {"a": "0"}, b"", version)) is signed


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("*", ["127.0.0.1", "::1"], []),
        ("*.*.*.*", ["10.1.2.3"], []),
        ("*:*:*:*:*:*:*:*", ["fe80::1", "10.1.2.3"], []),
        ("192.168.0.1", ["192.168.0.1", "::ffff:192.168.0.1"], ["192.168.0.2", "192.168.0.10"]),
        ("1050::5:600:300c:326b", ["1050:0:0:0:5:600:300C:326B"], ["1050::5:600:300c:326a"]),
        ("192.168.0.{1,2}", ["192.168.0.1", "192.168.0.2"], ["192.168.0.3", "192.168.1.1"]),
        ("1050::0005:0600:300c:{1326,300d}", ["1050::5:600:300c:1326"], ["1050::5:600:300c:1327"]),
        ("10.0.0.1, 10.0.0.9", ["10.0.0.1", "10.0.0.9"], ["10.0.0.2"]),
        ("192.168.0.1-100", ["192.168.0.1", "192.168.0.100"], ["192.168.0.0", "192.168.0.101", "192.168.1.5"]),
        ("192.168.1-2.*", ["192.168.1.7", "192.168.2.0"], ["192.168.3.7", "192.168.0.7"]),
        ("192.*.*.*", ["192.0.0.1"], ["193.0.0.1", "::1"]),
        ("10.10.103.*", ["10.10.103.1"], ["10.10.10.3", "10.10.104.1"]),
        ("1050::5:600:300c:*", ["1050::5:600:300c:9"], ["1050::6:600:300c:9"]),
        ("1050::5:600:300c:1-ff", ["1050::5:600:300c:fe"], ["1050::5:600:300c:100"]),
    ],
)
def test_address_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    strategy = parse_addresses(pattern)
    for address in inside:
        assert strategy.matches(segments_of(address)), address
    for address in outside:
        assert not strategy.matches(segments_of(address)), address


@pytest.mark.parametrize(
    "pattern",
    ["10.10.103.1*", "256.0.0.1", "10.0.0", "10.0.0.2-1", "10.0.0.1-300", "10.0.0{1,2}", "10.0.0.{1,2", "10.*.0.1",
     "10.-.0.1", "-1.0.0.0", "name.example", "10.0.0.1,", "10.0.0.*,10.0.1.*", "10.0.0.{1,999}", "::*::", "1:2:*"],
)  # fmt: skip
def test_other_texts_are_no_address_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match="not an address pattern"):
        parse_addresses(pattern)


def account(**permissions: object) -> Account:
    entry = {"accessKey": "some-account", "secretKey": "a-secret-long-enough", **permissions}
    return read_accounts(read_document(write_document({"accounts": [entry]}), "f"), "f", False)[0]


@pytest.mark.parametrize(
    ("owned", "needed", "allowed"),
    [("DENY", PUB, False), ("PUB", PUB, True), ("PUB", SUB, False), ("SUB", SUB, True), ("PUB|SUB", PUB, True),
     ("SUB|PUB", SUB, True), (" pub | sub ", SUB, True), ("ANY", PUB, False), ("nonsense", PUB, False)],
)  # fmt: skip
def test_permissions(owned: str, needed: int, allowed: bool) -> None:
    assert account(topicPerms=[f"T={owned}"]).allows(topic("T", needed)) is allowed
    assert account(defaultTopicPerm=owned).allows(topic("T", needed)) is allowed
    assert not account(topicPerms=["T=DENY"], defaultTopicPerm=owned).allows(topic("T", needed))
    assert not account(topicPerms=[f"U={owned}"]).allows(topic("T", needed))


def test_retry_topics_are_their_group_s() -> None:
    member = account(topicPerms=["%RETRY%G1=SUB"], groupPerms=["G2=SUB", "%RETRY%G3=SUB"])
    for name in ("G1", "G2", "G3"):
        assert member.allows(group(name))
        assert member.allows(topic(f"%RETRY%{name}", PUB))
        assert member.allows(topic(f"%DLQ%{name}", SUB))
    assert not member.allows(topic("%RETRY%G4", SUB))
    assert not member.allows(topic("G2", SUB))


def test_defaults_do_not_reach_topics_in_which_messages_of_others_wait() -> None:
    everything = account(defaultTopicPerm="PUB|SUB")
    assert everything.allows(topic("any", SUB))
    for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
        assert not everything.allows(topic(name, SUB))
        assert account(topicPerms=[f"{name}=SUB"]).allows(topic(name, SUB))


ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    "text",
    [
        ALIAS_BOMB,
        "accounts: " + "[" * 5000 + "]" * 5000,
        "accounts: &a []\nglobalWhiteRemoteAddresses: *a",
        "accounts:\n  - {accessKey: account-1, secretKey: a-secret-long-enough, admin: false, admin: true}\n",
        "accounts: !!python/object/apply:os.system ['true']",
        "accounts: !!set {a, b}",
        "- a list",
        "accounts: {",
        "accounts: []\nacounts: []",
        "x" * 300_000,
        "\x00",
        "<<: {accounts: []}",
        "1: 2",
        "--- {}\n--- {}",
    ],
    ids=range(14),
)
def test_s17_dangerous_or_careless_yaml_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        read_accounts(read_document(text.encode(), "file.yml"), "file.yml", False)


@pytest.mark.parametrize(
    "entry",
    [
        {"accessKey": "short"},
        {"accessKey": None},
        {"accessKey": ["a"]},
        {"admin": "yes"},
        {"admin": 1},
        {"topicPerms": "T=PUB"},
        {"topicPerms": ["T"]},
        {"topicPerms": ["T=PUB=SUB"]},
        {"topicPerms": ["=PUB"]},
        {"groupPerms": [{"G": "SUB"}]},
        {"whiteRemoteAddress": "10.10.103.1*"},
        {"signatureVersion": "3"},
        {"perms": []},
    ],
)
def test_accounts_that_are_not_as_they_must_be(entry: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        account(**entry)


def test_one_rule_that_denies_wins() -> None:
    assert account(topicPerms=["T=PUB", "T=DENY"]).topics == {"T": DENY}
    assert account(topicPerms=["T=DENY", "T=PUB"]).topics == {"T": DENY}


def test_two_accounts_of_one_name() -> None:
    entry = {"accessKey": "some-account", "secretKey": "a-secret-long-enough"}
    with pytest.raises(FormatError):
        read_accounts({"accounts": [entry, dict(entry)]}, "f", False)
