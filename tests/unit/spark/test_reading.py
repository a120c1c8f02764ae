"""Reading in a task of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_collections_after_the_first_task_skip_the_modules_that_it_imported() -> None:
    program = """
        import gc

        from pyspark.sql.types import StructType

        from rucola.arrow.ranges import LogRange, QueueRange
        from rucola.common.message_queue import MessageQueue
        from rucola.spark.options import parse_options
        from rucola.spark.reading import read_range

        queue = QueueRange(MessageQueue("t", "b", 0), 0, 1)
        piece = LogRange(0, 1, (queue,), ())
        read_range(parse_options({"storePath": "d", "topic": "t"}), StructType(), piece)
        import numpy
        import pyarrow

        visited = {id(one) for one in gc.get_objects()}
        assert id(vars(numpy)) not in visited
        assert id(vars(pyarrow)) not in visited
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=60)
