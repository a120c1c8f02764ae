"""Loads every kernel in both forms: compiled, as ``import`` does, and interpreted, from its source loaded a second
time.

A test takes the fixture ``form`` (``tests/conftest.py``) and requests the kernels that it needs in that form. Without a
compiler, the compiled form does not exist; then ``form`` has one value, and the header of the run says so.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parents[1] / "src"
KERNELS = tuple(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts) for path in sorted(SOURCES.glob("rucola/**/_*_cy.py"))
)
COMPILED = tuple(name for name in KERNELS if importlib.import_module(name)._is_compiled())
FORMS = ("compiled", "interpreted") if COMPILED == KERNELS else ("interpreted",)


@cache
def kernel(name: str, form: str) -> ModuleType:
    """Returns the kernel ``name``, for example ``"formats._message_cy"``, in form ``"compiled"`` or
    ``"interpreted"``.
    """
    name = f"rucola.{name}"
    if form == "compiled":
        return importlib.import_module(name)
    path = SOURCES / (name.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location(f"interpreted.{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
