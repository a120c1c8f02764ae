"""What the tests in a browser need beside the extra ``browser``, and where it is on this machine."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_VARIABLE = "CHROMIUM"


class MissingError(Exception):
    """Something is not installed; the text says what, and how to install it."""


def check_packages() -> None:
    """Checks that the packages of the extra ``browser`` are installed.

    Raises:
        MissingError: one is not.
    """
    for module in ("playwright", "axe_playwright_python"):
        if find_spec(module) is None:
            raise MissingError(f"the package {module} is missing: pip install '.[browser]'")


def chromium() -> str:
    """The path of Chromium: that in the variable ``CHROMIUM``, or the first one on the path.

    Raises:
        MissingError: there is none.
    """
    given = os.environ.get(_VARIABLE)
    if given:
        if not os.access(given, os.X_OK):
            raise MissingError(f"{_VARIABLE}={given} is no program")
        return given
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        raise MissingError(
            f"none of {', '.join(_PROGRAMS)} is on the path: apt-get install chromium fonts-noto-cjk, "
            f"or set {_VARIABLE} to the path of a Chromium"
        )
    return found
