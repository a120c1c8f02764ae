"""Errors of Spark's jobs become one line, with the exit code of the task's error."""

from __future__ import annotations

import pytest

from rucola.cli.exit_codes import ExitCode, exit_code
from rucola.errors import ConfigError, TaskFailedError
from rucola.spark.failures import one_line, task_error

SPARKS = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
rucola.errors.{name}: /store/table/part: is a FIFO: not a file

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Driver stacktrace:"""


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ForeignEntryError", ExitCode.STORE_DAMAGED),
        ("FormatError", ExitCode.STORE_DAMAGED),
        ("StoreLockedError", ExitCode.STORE_LOCKED),
        ("DiskFullError", ExitCode.DISK),
        ("ConfigError", ExitCode.USAGE),
        ("DataLossError", ExitCode.FAILED),
        ("NoSuchError", ExitCode.FAILED),
        ("annotations", ExitCode.FAILED),
    ],
)
def test_the_line_and_the_exit_code_are_those_of_the_task(name: str, code: ExitCode) -> None:
    error = task_error(SPARKS.format(name=name))
    assert str(error) == "the job on Spark failed: /store/table/part: is a FIFO: not a file"
    assert exit_code(error) is code


def test_other_errors_of_spark_give_their_first_line() -> None:
    assert task_error("\n\n  Job aborted.\n\tat org.apache").reason == "Job aborted."
    assert task_error(" \n").reason == "no reason given"
    assert exit_code(task_error("Job aborted.")) is ExitCode.FAILED


def test_only_errors_of_spark_are_turned_into_lines() -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for kind in (PySparkException, Py4JError):
        with pytest.raises(TaskFailedError, match="is a FIFO"), one_line():
            raise kind(SPARKS.format(name="ForeignEntryError"))
    for other in (ConfigError("a", "b", "c"), ValueError("a defect"), KeyboardInterrupt()):
        with pytest.raises(type(other)), one_line():
            raise other
