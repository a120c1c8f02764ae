"""No garbage is collected while the interpreter lists the frames: that could end with all threads waiting for ever."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import pytest

import rucola
from rucola.runtime import frames


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_waits_until_the_frames_are_listed(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    listed = sys._current_frames

    def noting() -> object:
        seen.append(gc.isenabled())
        return listed()

    monkeypatch.setattr(sys, "_current_frames", noting)
    if not collects:
        gc.disable()
    try:
        found = frames.current_frames()
        assert gc.isenabled() is collects
    finally:
        gc.enable()
    assert seen == [False]
    assert threading.get_ident() in found


def test_garbage_is_collected_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "_current_frames")
    with pytest.raises(AttributeError):
        frames.current_frames()
    assert gc.isenabled()


def test_two_threads_do_not_list_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to end would let garbage be collected during the other one's call."""
    inside, too_early, leave = threading.Event(), threading.Event(), threading.Event()
    collects: list[bool] = []

    def first() -> dict[int, object]:
        inside.set()
        leave.wait()
        return {}

    def second() -> dict[int, object]:
        too_early.set()
        threads[0].join()
        collects.append(gc.isenabled())
        return {}

    threads = [threading.Thread(target=frames.current_frames, daemon=True) for _ in range(2)]
    monkeypatch.setattr(sys, "_current_frames", first)
    threads[0].start()
    inside.wait()
    monkeypatch.setattr(sys, "_current_frames", second)
    threads[1].start()
    waits = not too_early.wait(0.2)
    leave.set()
    threads[1].join()
    assert waits
    assert collects == [False]
    assert gc.isenabled()


def test_nobody_else_lists_frames() -> None:
    source = Path(rucola.__file__).parent
    callers = [path.name for path in source.rglob("*.py") if "sys._current_frames()" in path.read_text()]
    assert callers == ["frames.py"]
