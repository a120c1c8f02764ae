"""Finds the Java that Spark would start, before any expensive step begins.

Uses only the standard library, and nothing from this package: ``make demo`` runs it before PySpark (435 MB) is
installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

JAVA_MAJOR_MIN = 17
"""Oldest Java release that Spark 4 runs on."""

EXIT_NO_JAVA = 2
_TIMEOUT_S = 30.0
_ADVICE = (
    f"install Java {JAVA_MAJOR_MIN} or newer (Debian, Ubuntu: 'apt install openjdk-17-jre-headless'; "
    "macOS: 'brew install openjdk@17'; others: https://adoptium.net) and have 'java' in PATH or set JAVA_HOME"
)


def major_version(text: str) -> int | None:
    """The feature release in the output of ``java -version``, such as 17 for ``17.0.15`` and 8 for ``1.8.0_402``, or
    None.
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


def java_command() -> str | None:
    """The program that Spark would run: ``$JAVA_HOME/bin/java`` if the variable is set, otherwise ``java`` from
    PATH.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which("java", path=f"{home}/bin")
    return shutil.which("java")


def java_problem() -> str | None:
    """One line with the problem and what to install; None if Spark can run."""
    command = java_command()
    if command is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has no bin/java" if home else "Java not found"
        return f"{where}: Spark needs it; {_ADVICE}"
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command} does not run ({error}): {_ADVICE}"
    major = major_version(done.stderr + done.stdout)
    if done.returncode != 0 or major is None:
        return f"{command} -version failed with exit {done.returncode}: {_ADVICE}"
    if major < JAVA_MAJOR_MIN:
        return f"{command} is Java {major}, too old for Spark 4: {_ADVICE}"
    return None


def main() -> int:
    """Prints the problem, if there is one.

    Returns:
        0, or `EXIT_NO_JAVA`.
    """
    problem = java_problem()
    if problem is None:
        return 0
    print(f"demo: {problem}", file=sys.stderr)
    return EXIT_NO_JAVA


if __name__ == "__main__":
    sys.exit(main())
