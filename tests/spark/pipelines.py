"""``python -m tests.spark.pipelines``: tests the template in ``examples/pipeline`` with both of its runners.

The template is copied and run with ``spark-pipelines`` and with ``spark-submit``, then more messages are sent and both
run again: bronze must grow by exactly the new messages, and silver and gold must agree with bronze. The exit status is
1 if they do not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rucola.common.message import Message

from .conftest import BrokerProcess

TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "pipeline"
TIMEOUT_S = 400
FIRST = (b'{"item":"tea","price":3}', b"no JSON", b'{"item":"tea","price":4}')
DECLARATIVE = ("spark-pipelines", "run", "--remote", "local[2]", "--conf", "spark.sql.catalogImplementation=hive")
SECOND = (b'{"item":"tea","price":5}', b'{"item":"bun","price":1}')


Tables = dict[str, list[tuple[Any, ...]]]


def rows(place: Path, table: str) -> list[dict[str, Any]]:
    """Returns the rows in a directory of Parquet files."""
    files = sorted((place / table).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def tables(place: Path, gold: str) -> Tables:
    """Returns the results on which both runners must agree."""
    return {
        "bronze": sorted((row["body"],) for row in rows(place, "bronze")),
        "silver": sorted((row["item"], row["price"]) for row in rows(place, "silver")),
        "gold": sorted((row["item"], row["orders"], row["total"]) for row in rows(place, gold)),
    }


def run(place: Path, *command: str) -> float:
    """Runs a program of Spark in ``place``; returns the seconds that it took."""
    begin = time.monotonic()
    programs = Path(sys.executable).parent
    paths = os.pathsep.join([str(programs), os.environ["PATH"]])
    python = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PATH": paths, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": python}
    subprocess.run([programs / command[0], *command[1:]], cwd=place, env=environment, check=True, timeout=TIMEOUT_S)
    return time.monotonic() - begin


def main() -> int:
    """Runs the template twice with each runner."""
    with tempfile.TemporaryDirectory(prefix="rucola-pipeline-") as directory:
        place = Path(directory, "orders")
        shutil.copytree(TEMPLATE, place)
        broker = BrokerProcess(Path(directory))
        broker.start()
        try:
            spec = place / "spark-pipeline.yml"
            text = spec.read_text().replace("127.0.0.1:9876", broker.namesrv)
            spec.write_text(text.replace("file:///tmp/orders-pipeline", place.as_uri()))
            seconds = []
            for bodies in (FIRST, SECOND):
                with broker.producer() as producer:
                    producer.send_batch([Message("orders", body) for body in bodies])
                seconds.append(run(place, *DECLARATIVE))
                seconds.append(run(place, "spark-submit", "stream.py", broker.namesrv, str(place / "streamed")))
        finally:
            broker.stop()
        newest = max((place / "streamed" / "gold").iterdir(), key=lambda path: int(path.name.partition("=")[2]))
        found = {
            "spark-pipelines": tables(place / "spark-warehouse", "gold"),
            "streaming": tables(place / "streamed", f"gold/{newest.name}"),
        }
    expected: Tables = {
        "bronze": sorted((body,) for body in FIRST + SECOND),
        "silver": [("bun", 1), ("tea", 3), ("tea", 4), ("tea", 5)],
        "gold": [("bun", 1, 1), ("tea", 3, 12)],
    }
    wrong = [(runner, name) for runner in found for name in expected if found[runner][name] != expected[name]]
    for runner, name in wrong:
        print(f"{runner}: {name}: {found[runner][name]}, expected {expected[name]}")
    times = ", ".join(f"{one:.0f} s" for one in seconds)
    print(f"{'wrong' if wrong else 'all tables are right'}; the runs took {times}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
