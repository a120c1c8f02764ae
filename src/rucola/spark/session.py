"""A local Spark session that starts quickly, for tests, the demo and the command line.

The defaults suit a session that lives for seconds: a JIT compiler tier and a garbage collector that start quickly, no
web interface, few shuffle partitions, and workers that run the current Python interpreter.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rucola.errors import MissingProgramError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME_PARTS = ("bin", "jars", "sbin", "data")
"""Parts of an installed PySpark that make up a Spark home, without the Python sources."""
JAVA_VERSION_MIN = 17
JAVA_ADVICE = "install Java 17 or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"

GATEWAY = "PYSPARK_GATEWAY_PORT"
"""``spark-submit`` sets this variable for the Python program that it starts."""
QUIET = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
FAST_START = {
    **QUIET,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Settings of ``local_session``; an argument of the same name takes precedence."""


def local_session(name: str, *, master: str = "local[2]", **conf: str) -> SparkSession:
    """Starts a session on this machine. The session knows the format ``rocketmq``.

    Args:
        name: application name.
        master: Spark master, ``local[N]``.
        conf: further settings, ``**{"spark.sql.warehouse.dir": ...}``; they take precedence over the defaults.

    Raises:
        MissingProgramError: Java is missing or too old.
    """
    check_java()
    # Otherwise Spark runs "python3" from PATH, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Otherwise Spark looks up the machine's own name and logs a warning about the result.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**FAST_START, **conf}.items():
        builder = builder.config(key, value)
    with _quick_workers():
        return builder.getOrCreate()


def command_session(name: str, *, master: str | None = None, **conf: str) -> SparkSession:
    """The session of a command.

    On a cluster and under ``spark-submit``, the session does not use ``FAST_START``, because other machines could not
    reach a driver at 127.0.0.1.

    Args:
        name: application name.
        master: Spark master; None means the master of ``spark-submit``; without ``spark-submit``, None means all
            processors of this machine.
        conf: further settings.

    Raises:
        MissingProgramError: Java is missing or too old.
    """
    submitted = GATEWAY in os.environ
    logging.getLogger().addFilter(_is_not_of_py4j)
    if not submitted:
        conf = {"spark.log.level": "OFF", **conf}  # the command says in one line what failed
    if master is None and not submitted:
        master = "local[*]"
    if not submitted and master is not None and master.startswith("local"):
        return local_session(name, master=master, **conf)
    check_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = {**QUIET, **conf}
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """False for what py4j logs when Ctrl-C or the end of Java interrupts it: stacks, through no logger of its own."""
    return record.module not in ("java_gateway", "clientserver")


@contextmanager
def _quick_workers() -> Iterator[None]:
    """A Java process that starts within this context starts its Python workers three times as quickly.

    Normally Spark puts a zip file of PySpark first on the workers' module path. Each process compiles the modules in a
    zip file anew, which takes a second. Several processes start one after another before a worker is ready, and Spark
    waits only ten seconds for the worker. This context sets ``SPARK_HOME`` to a directory of symbolic links that has no
    such zip file. A ``SPARK_HOME`` set by the user is left alone.
    """
    if "SPARK_HOME" in os.environ or not (home := _spark_home()):
        yield
        return
    os.environ["SPARK_HOME"] = home
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


@cache
def _spark_home() -> str:
    """Makes a directory of symbolic links to the parts of PySpark that Java needs; returns its path, or "" on failure.

    The directory is removed when the process ends.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    if not (installed / "jars").is_dir():
        return ""
    home = tempfile.mkdtemp(prefix="rucola-spark-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    try:
        for name in HOME_PARTS:
            Path(home, name).symlink_to(installed / name)
    except OSError:  # the system has no symbolic links
        return ""
    return home


def check_java() -> None:
    """Checks that Spark will find a Java version that it can run on.

    Raises:
        MissingProgramError: Java is missing or too old; the error says what was found and what to install.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(os.path.join(home, "bin", "java") if home else "java")  # noqa: PTH118 - gives a text
    if program is None:
        raise MissingProgramError("Java", "none", JAVA_ADVICE)
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=60)
    version = java_version(answer.stderr + answer.stdout)
    if version is None or version < JAVA_VERSION_MIN:
        raise MissingProgramError("Java", "version " + (str(version) if version else "unknown"), JAVA_ADVICE)


def java_version(text: str) -> int | None:
    """The feature release in the output of ``java -version``, such as 8 for "1.8.0"; None if no version is found."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None
