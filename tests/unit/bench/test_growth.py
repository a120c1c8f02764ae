"""Curves of growth: which ones bend, what is fitted and published, and that a log of holes is a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench import growth, growth_report, growth_store
from bench.context import Context
from bench.growth_curves import Curve, Growth, Point, Series, fit_line, worst_step
from bench.growth_report import BEGIN, END, markdown, publish, summary
from bench.load_lockstep import Work, prepared
from tools.peers.packages import PeerError

from rucola.protocol.frame import FrameReader
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore


def points(*pairs: tuple[int, float]) -> list[Point]:
    return [Point(size, cost, 1.0, 20.0) for size, cost in pairs]


def nothing(_growth: Growth, _server: str, _sizes: Sequence[int]) -> Iterator[Point]:
    yield from ()


FLAT = Curve("flat", "things", "things", (1, 10, 100), nothing)
STRAIGHT = Curve("straight", "bytes", "bytes", (1, 10, 100), nothing, straight=True)


@pytest.mark.parametrize(
    ("pairs", "worst"),
    [
        (((1, 10.0), (10, 12.0), (100, 12.0)), 1.2),
        (((1, 10.0), (100, 14.4)), 1.2),  # two tenfold steps
        (((10, 10.0), (20, 11.0)), 1.1),  # less than one
        (((6, 10.0), (12, 10.5), (18, 11.0), (54, 11.5)), 1.15),  # small steps add up
        (((0, 10.0), (1000, 15.0)), 1.5),
        (((1, 10.0), (10, 5.0)), 0.5),
        (((1, 10.0),), None),
    ],
)
def test_the_worst_growth_is_that_of_a_tenfold_size(pairs: Sequence[tuple[int, float]], worst: float | None) -> None:
    assert worst_step(points(*pairs)) == (worst if worst is None else pytest.approx(worst))


def test_a_line_is_fitted_with_relative_deviations() -> None:
    line = fit_line(points((1, 10.01), (1000, 20.0), (4_000_000, 40_010.0)))
    assert line is not None
    assert (line.fixed_us, line.slope_us, line.deviation) == pytest.approx((10, 0.01, 1), rel=1e-3)
    bent = fit_line(points((1, 10), (10, 11), (100, 80), (1000, 110)))
    assert bent is not None
    assert bent.deviation > 1.5
    assert fit_line(points((1, 10), (1, 11))) is None


def test_a_series_says_whether_it_bends() -> None:
    flat, bent = Series(points((1, 10), (10, 11)), control=1.02), Series(points((1, 10), (10, 13)), ended="given up")
    noisy = Series(points((1, 10), (10, 13)), control=0.9)
    found = [FLAT.verdict(series) for series in (flat, bent, noisy, Series())]
    assert found == ["flat", "bends", "too noisy to tell", "too few sizes"]
    assert summary(FLAT, flat) == "1.10× per tenfold size (p99 1.00×), smallest size again 1.02×, flat"
    assert summary(FLAT, bent).endswith("bends, given up")
    assert summary(STRAIGHT, Series(points((1, 1), (1024, 2)))) == "0.999 µs + 1 µs per KiB, deviation 1.00×, straight"


def test_curves_are_published_between_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "figures.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(growth_report, "PAGE", page)
    monkeypatch.setattr(growth_report, "SHORT_PAGE", tmp_path / "performance.md")
    results = {"flat": {"rucola": Series(points((1, 10), (10, 11))), "java": Series(ended="given up")}, "straight": {}}
    publish([FLAT, STRAIGHT], results, "here")
    text = page.read_text()
    assert text == f"before\n{BEGIN}\n{markdown([FLAT, STRAIGHT], results, 'here')}\n{END}\nafter\n"
    assert "| things | ours | 1, 10 | 10.00, 11.00 µs | 1.00, 1.00 ms | 20, 20 MB | 1.10×" in text
    assert "| things | Java | | | | | given up |" in text
    assert (tmp_path / growth_report.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_a_series_ends_with_its_reason_and_its_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three(_growth: Growth, server: str, _sizes: Sequence[int]) -> Iterator[Point]:
        yield from points((1, 10), (10, 10))
        if server == "java":
            raise PeerError("given up\nwith a log")
        yield from points((100, 10), (1, 12))

    curve = Curve("three", "things", "things", (1, 10, 100, 1000), three)
    with ExitStack() as stack:
        run = Growth(Context(True, stack, lambda _: None))
        assert run.sizes(curve) == [1, 10, 100]
        ours, java = growth.measure(run, curve, "rucola"), growth.measure(run, curve, "java")
        assert Growth(run.context, 10).sizes(curve) == [1, 10]
    assert ([point.size for point in ours.points], ours.control, ours.ended) == ([1, 10, 100], 1.2, "")
    assert (len(java.points), java.control, java.ended) == (2, None, "given up")
    monkeypatch.setattr(growth, "RESULTS", tmp_path / "growth.json")
    growth.save({"one": {"rucola": java}, "three": {"rucola": java, "java": java}})
    growth.save({"three": {"rucola": ours}})
    assert growth.load() == {"one": {"rucola": java}, "three": {"rucola": ours, "java": java}}


def test_a_log_of_holes_has_its_messages(tmp_path: Path) -> None:
    growth_store.write_log(tmp_path, 2)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert [file.stat().st_size for file in files] == [growth_store.SEGMENT_BYTES] * 3
    assert sum(file.stat().st_blocks for file in files) * 512 < 1 << 20
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=growth_store.SEGMENT_BYTES
    )
    store = MessageStore(config, Files(), SystemClock())
    store.load()
    assert [store.max_queue_offset(b"growth0", queue) for queue in range(4)] == [3 * 16] * 4
    assert 0 < store.max_offset - 2 * growth_store.SEGMENT_BYTES < 64 * 1500
    store.shutdown()


def test_prepared_sends_go_to_all_queues_in_turn() -> None:
    reader = FrameReader()
    found = []
    for frames, count in prepared("t", Work(0, window=2, queues=1002, body=1)):
        reader.buffer()[: len(frames)] = frames
        batch = reader.received(len(frames))
        assert batch is not None
        assert batch.count == count
        found += [batch.command(row).ext_fields for row in range(batch.count)]
    assert [(each["b"], each["e"]) for each in found] == [
        *(("t0", str(number)) for number in range(1000)),
        ("t1", "0"),
        ("t1", "1"),
    ]
