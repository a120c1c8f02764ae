"""A client imports only what it uses: a process that sends one message should not wait for the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNUSED = {
    "rucola.client.consume_trace",
    "rucola.client.trace",
    "rucola.protocol.trace",
    "rucola.remoting.signer",
    "rucola.remoting.admin_api",
    "rucola.broker",
    "rucola.store",
    "secrets",
    "numpy",
    "pyarrow",
    "uvloop",
}


def modules_of(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_package_imports_nothing_of_its_own() -> None:
    loaded = modules_of("import rucola")
    assert {name for name in loaded if name.startswith("rucola.")} == set()
    assert "asyncio" not in loaded


@pytest.mark.few
@pytest.mark.parametrize("package", ["rucola", "rucola.sync"])
@pytest.mark.parametrize("name", ["Producer", "PushConsumer"])
def test_a_client_without_account_and_traces_imports_neither(name: str, package: str) -> None:
    assert modules_of(f"from {package} import {name}") & UNUSED == set()


@pytest.mark.parametrize("package", ["rucola", "rucola.sync"])
def test_a_producer_imports_no_consumer(package: str) -> None:
    consumers = {"rucola.client.push_consumer", "rucola.client.simple_consumer", "rucola.client.pull_consumer"}
    assert modules_of(f"from {package} import Message, Producer") & consumers == set()
