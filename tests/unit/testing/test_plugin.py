"""The pytest plugin, as pytest finds it in an environment with the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_SESSION = """
import sys
from importlib.machinery import SourceFileLoader

from rucola import MessageSelector
from rucola.sync import PullConsumer

_brokers = set()


def test_first_of_a_session(rocketmq_session, rocketmq):
    _brokers.add(rocketmq_session.broker)
    assert rocketmq.broker != rocketmq_session.broker


def test_second_of_a_session(rocketmq_session):
    assert _brokers == {rocketmq_session.broker}
    with PullConsumer("readers", rocketmq_session.namesrv) as consumer:
        rocketmq_session.create_topic("filtered", queues=1)
        (queue,) = consumer.message_queues("filtered")
        assert consumer.pull(queue, 0, expression=MessageSelector.by_sql("a > 1")).messages == []


def test_modules_of_the_servers_are_not_rewritten(rocketmq_session):
    assert type(sys.modules["rucola.testing.rocketmq"].__loader__) is SourceFileLoader
    assert type(sys.modules[__name__].__loader__) is not SourceFileLoader
"""


def _installed(directory: Path) -> Path:
    """Makes the metadata that an installation of this ``pyproject.toml`` would have, even if none is installed."""
    points = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = directory / "rucola_as_installed-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rucola-as-installed\nVersion: 1\n")
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (info / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    (info / "RECORD").write_text("rucola/__init__.py,,\n")
    return directory


def test_example_of_the_page_runs_where_the_package_is_installed(tmp_path: Path) -> None:
    page = (_ROOT / "docs" / "testing.md").read_text()
    *examples, options = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_orders.py").write_text("\n\n".join(examples) + _SESSION)
    (suite / "conftest.py").write_text("import pytest\n\n" + options)
    paths = [str(_installed(tmp_path / "site")), str(_ROOT / "src")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(suite)],
        cwd=suite,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "8 passed" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0


def test_plugin_loads_no_server_before_a_test_asks_for_one() -> None:
    code = (
        "import sys, rucola.testing.plugin; "
        "print([name for name in sys.modules if name.startswith(('rucola.broker', 'rucola.store', 'uvloop'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


def test_pytest_belongs_to_extras_only() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if name.startswith("pytest")]
    assert [name for name in project["optional-dependencies"]["testing"] if name.startswith("pytest>=")]
