"""The example in the docstring of each package runs."""

from __future__ import annotations

import ast
import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import rucola
from rucola.sync import Message, Producer
from rucola.testing.rocketmq import RocketMQ

ROOT = Path(rucola.__file__).parent
PACKAGES = ["", *sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))]
GENERATED = "sync"
WITH_SESSION = "spark"
"""Its example is compiled here, because a session takes ten seconds to start."""


def example(package: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    return textwrap.dedent(text.partition("For example::\n\n")[2])


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        servers.create_topic("flights", queues=1)
        with Producer("g", servers.namesrv) as producer:
            for number in range(3):
                producer.send(Message("flights", b"%d" % number, tags="UA"))
        servers.wait_for_messages("flights", 3)
        yield servers


def test_every_package_has_an_example() -> None:
    assert [package for package in PACKAGES if not example(package)] == [GENERATED]
    compile(example(WITH_SESSION), WITH_SESSION, "exec")


@pytest.mark.parametrize("package", [name for name in PACKAGES if name not in (GENERATED, WITH_SESSION)])
def test_the_example_of_a_package_runs(
    package: str,
    rocketmq: RocketMQ,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = example(package).replace("127.0.0.1:9876", rocketmq.namesrv).replace("./store", rocketmq.store)
    names: dict[str, object] = {}
    exec("async def example():\n" + textwrap.indent(code, "    "), names)
    asyncio.run(names["example"]())  # type: ignore[operator]
    assert capsys.readouterr().out
