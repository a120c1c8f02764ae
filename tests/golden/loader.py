"""Reads the golden stores (see ``README.md`` in the same directory)."""

from __future__ import annotations

import json
import lzma
import tarfile
from base64 import b64decode
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path
from typing import Any

STORES = Path(__file__).parent / "stores"
BROKER_STORES = Path(__file__).parent / "broker_stores"
DAMAGE_STORES = Path(__file__).parent / "damage_stores"


@dataclass(frozen=True)
class Case:
    """One golden store: its input, what RocketMQ read, and the files of the directory by relative path."""

    name: str
    case: dict[str, Any]
    expect: dict[str, Any]
    files: dict[str, bytes]

    @property
    def puts(self) -> list[dict[str, Any]]:
        """Returns those steps of the case that put messages, in order."""
        return [step for step in self.case["steps"] if step["step"] == "put"]

    def config(self, key: str, default: int) -> int:
        """Returns a number from the configuration with which the store was written."""
        return int(self.case["config"].get(key, default))

    def below(self, directory: str) -> dict[str, bytes]:
        """Returns the files below ``directory`` of the store, by path relative to it."""
        prefix = directory + "/"
        return {path.removeprefix(prefix): data for path, data in self.files.items() if path.startswith(prefix)}


@cache
def load(name: str) -> Case:
    """Reads the case ``name`` into memory."""
    members = _members(STORES, name)
    return Case(name, json.loads(members["case.json"]), json.loads(members["expect.json"]), _files(members))


def unpack(name: str, directory: Path) -> Case:
    """Reads the case ``name`` and unpacks its store into ``directory``, where a test may change the files."""
    case = load(name)
    write_files(case.files, directory)
    return case


@dataclass(frozen=True)
class BrokerCase:
    """A store of RocketMQ's whole broker: its settings, the messages sent, and the messages that it served when it was
    opened again.
    """

    name: str
    broker_conf: str
    expected: dict[str, Any]
    reopened: dict[str, Any]
    files: dict[str, bytes]


@cache
def load_broker(name: str) -> BrokerCase:
    """Reads the broker store ``name`` into memory."""
    members = _members(BROKER_STORES, name)
    expected, reopened = (json.loads(members[f"{part}.json"]) for part in ("expected", "reopened"))
    return BrokerCase(name, members["broker.conf"].decode(), expected, reopened, _files(members))


def load_files(directory: Path, name: str) -> dict[str, bytes]:
    """Reads the files of the store ``name``, which has no accompanying files."""
    return _files(_members(directory, name))


def write_files(files: dict[str, bytes], directory: Path) -> None:
    """Writes files below ``directory``, given by relative path."""
    for path, data in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _members(directory: Path, name: str) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=BytesIO(lzma.decompress((directory / f"{name}.tar.xz").read_bytes()))) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                members[member.name.removeprefix(f"{name}/")] = file.read()
    return members


def _files(members: dict[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix("store/"): data for path, data in members.items() if path.startswith("store/")}


def body_bytes(body: dict[str, Any] | None) -> bytes:
    """Returns the bytes of a ``body`` in ``case.json``; without a body, no bytes."""
    if body is None:
        return b""
    if "base64" in body:
        return b64decode(body["base64"])
    return str(body["repeat"]).encode() * int(body["times"])


def host(value: dict[str, Any]) -> bytes:
    """Returns the bytes of a host in ``case.json``, computed without the code under test."""
    return ip_address(value["address"]).packed + int(value["port"]).to_bytes(4, "big")
