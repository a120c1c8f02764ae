"""The clients run without the packages of the extras; commands and brokers that need them name the extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rucola.errors import install_advice

ROOT = Path(__file__).parents[3]
OPTIONAL = [
    "Cython",
    "cython",
    "isal",
    "lark",
    "lz4",
    "matplotlib",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "uvloop",
    "yaml",
    "zstandard",
]
BLOCK = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
ABSENT = f"""
import importlib.util
import rucola.runtime.extras as extras
found = extras.find_spec
extras.find_spec = lambda name: None if name in {OPTIONAL} else found(name)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


CLIENT = """
import asyncio, rucola, rucola.sync
for module in (rucola, rucola.sync):
    for name in module.__all__:
        getattr(module, name)
from rucola.client.loop_thread import LoopThread
from rucola.client.admin import AdminClient
assert not {"lark", "yaml", "rich", "typer"} & sys.modules.keys()

async def send():
    async with rucola.Producer("g", "127.0.0.1:1") as producer:
        await producer.send(rucola.Message("t", b"b"))

try:
    asyncio.run(send())
except rucola.errors.RucolaError as error:
    print(type(error).__name__)
"""

INTERPRETED = """
import importlib.util, pathlib, sys
import rucola
root = pathlib.Path(rucola.__file__).parent
for path in sorted(root.glob("**/_*_cy.py")):
    name = "rucola." + ".".join(path.relative_to(root).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module._is_compiled() is False
    assert module.cython.__name__ == "rucola.common.cython_fallback"
"""


def test_the_clients_need_none_of_the_optional_packages() -> None:
    ended = run(BLOCK + CLIENT)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() == "NoRouteError", "the producer ran until it needed a name server"


def test_interpreted_kernels_need_no_cython() -> None:
    """Without Cython, the interpreted kernels encode a record, walk over it, and read a frame."""
    work = """
from array import array
from rucola.common.columns import new_table
from rucola.common.message import StoreMessage
from rucola.formats.checksum import crc32
from rucola.formats.message import encode_message, walk_records
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameReader
record = encode_message(StoreMessage(b"t", 0, b"body", b"", 1, bytes(8)), 0, 0, 1, bytes(8))
assert walk_records(record, memoryview(record), 0, len(record), 0, new_table(4), 4, crc32, 7)[0] == 1
reader = FrameReader(1 << 16)
frame = RemotingCommand(310, ext_fields={"a": "g", "b": "t", "e": "0", "i": "K\\x01V\\x02"}, body=b"x").encode()
reader.buffer()[: len(frame)] = frame
batch = reader.received(len(frame))
assert batch.count == 1 and bytes(batch.body(0)) == b"x"
print("done")
"""
    ended = run(BLOCK + INTERPRETED + work)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "done", "")


@pytest.mark.parametrize(
    ("arguments", "needed", "extra"),
    [
        (["up", "--ephemeral"], "lark, prometheus_client, rich, starlette, uvicorn, yaml", "server"),
        (["namesrv"], "lark, prometheus_client, rich, starlette, uvicorn, yaml", "server"),
        (["broker"], "lark, prometheus_client, rich, starlette, uvicorn, yaml", "server"),
        (["store", "info", "."], "rich, typer, yaml", "cli"),
        (["mqadmin", "clusterList"], "rich, typer, yaml", "cli"),
        (["completion", "bash"], "rich, typer, yaml", "cli"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(arguments: list[str], needed: str, extra: str) -> None:
    ended = run(ABSENT + "from rucola.cli.main import run; run()", *arguments)
    assert ended.returncode == 1
    assert ended.stderr == f"rucola: rucola {arguments[0]} needs {needed}: {install_advice(extra)}\n"


def test_a_broker_names_the_extra_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from rucola.broker import Broker, BrokerConfig
    from rucola.errors import MissingExtraError
    from rucola.runtime import extras
    from rucola.store.config import MessageStoreConfig

    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "lark" else found(name))
    with pytest.raises(
        MissingExtraError,
        match=r"a broker needs lark: pip install 'rucola-mq\[server\]'",
    ):
        Broker(BrokerConfig(), MessageStoreConfig())


def test_extras_install_what_is_required_of_them() -> None:
    from rucola.runtime.extras import CLI, GRPC, SERVER

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["orjson>=3.10"]
    modules = {"PyYAML": "yaml", "prometheus-client": "prometheus_client", "protobuf": "google.protobuf"}
    for name, required in (SERVER, CLI, GRPC):
        packages = [text.partition(">=")[0] for text in project["optional-dependencies"][name]]
        assert sorted(modules.get(package, package) for package in packages if "[" not in package) == list(required)


def test_an_extra_is_advised_by_the_name_of_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install_advice("cli") == f"pip install '{project['name']}[cli]', or '.[cli]' in a checkout"


def test_no_text_names_the_distribution_of_others() -> None:
    """``rucola`` in the package index is not ours: nothing may advise or require it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if name in ("CHANGELOG.md", "tests/unit/packaging/test_extras.py") or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found = re.findall(r"(?<![/\w.-])rucola\[[a-z$][^\]]*\]|pip install (?:[^\n#]* )?'?rucola(?![\w-])", text)
        assert not found, f"{name}: {found}"
