"""Modules imported in a thread while the loop runs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.runtime.background_imports import BackgroundImports, is_imported

SLOW = "import tests.unit.runtime.test_background_imports as here\nhere.GATE.wait(60)\nhere.ORDER.append(__name__)\n"
GATE = threading.Event()
ORDER: list[str] = []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose modules, ``background_a`` and so on, can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    GATE.clear()
    ORDER.clear()
    for letter in "abcd":
        (tmp_path / f"background_{letter}.py").write_text(SLOW)
    yield tmp_path
    GATE.set()
    for letter in "abcd":
        sys.modules.pop(f"background_{letter}", None)


def test_the_loop_goes_on_and_knows_that_a_module_is_not_ready(place: Path) -> None:
    async def scene() -> None:
        imports = BackgroundImports()
        waiting = asyncio.ensure_future(imports.get("background_a"))
        async with asyncio.timeout(30):
            while "background_a" not in sys.modules:
                await asyncio.sleep(0.001)
            assert not is_imported("background_a")
            second = asyncio.ensure_future(imports.get("background_a"))
            await asyncio.sleep(0)
            assert not waiting.done()
            GATE.set()
            await waiting
            await second
        assert is_imported("background_a")
        await imports.get("background_a")
        assert ORDER == ["background_a"]

    asyncio.run(scene())


def test_awaited_imports_come_before_those_only_begun(place: Path) -> None:
    async def scene() -> None:
        imports = BackgroundImports()
        imports.begin(["background_a", "background_b", "background_c"])
        waiting = [asyncio.ensure_future(imports.get(f"background_{letter}")) for letter in "cd"]
        await asyncio.sleep(0)  # both have asked
        async with asyncio.timeout(30):
            while "background_a" not in sys.modules:
                await asyncio.sleep(0.001)
            GATE.set()
            await asyncio.gather(*waiting)
            while len(ORDER) < 4:
                await asyncio.sleep(0.001)
        assert ORDER[0] == "background_a"
        assert set(ORDER[1:3]) == {"background_c", "background_d"}
        assert ORDER[3:] == ["background_b"]

    asyncio.run(scene())


def test_a_module_that_cannot_be_imported_is_an_error_and_is_tried_again(place: Path) -> None:
    async def scene() -> None:
        imports = BackgroundImports()
        (place / "background_a.py").write_text("raise ValueError('not yet')")
        imports.begin(["background_a"])
        with pytest.raises(ValueError, match="not yet"):
            await imports.get("background_a")
        (place / "background_a.py").write_text("VALUE = 7\n\n")
        await imports.get("background_a")
        assert sys.modules["background_a"].VALUE == 7

    asyncio.run(scene())


def test_loaded_modules_are_not_imported_again() -> None:
    async def scene() -> None:
        imports = BackgroundImports()
        imports.begin(["asyncio", "json"])
        await imports.get("asyncio")
        assert not imports._works

    asyncio.run(scene())
