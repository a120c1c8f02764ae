"""The version of orjson is checked where it is imported, and it is imported in one place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rucola

ROOT = Path(rucola.__file__).parent


@pytest.mark.parametrize(
    ("version", "accepted"), [("3.8.3", False), ("3.9.15", False), ("3.10.0", True), ("4.0", True)]
)
def test_a_version_that_ends_the_process_on_deep_documents_is_refused(
    version: str, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("orjson")
    library.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "orjson", library)
    source = compile((ROOT / "common/json_library.py").read_text(), "json_library", "exec")
    if accepted:
        exec(source, {"__name__": "checked"})
        return
    with pytest.raises(ImportError, match=re.escape(f"orjson {version} is too old: rucola needs 3.10 or newer")):
        exec(source, {"__name__": "checked"})


def test_no_other_module_imports_it() -> None:
    found = [path for path in ROOT.rglob("*.py") if re.search(r"^\s*(import|from) orjson", path.read_text(), re.M)]
    assert [path.name for path in found] == ["json_library.py"]
