"""The page of pictures is drawn for every kind of run, and contains all required parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo.flights.figures import CarrierMonth
from demo.flights.measure import BatchReport, Measurements, Progress, Sample
from demo.flights.picture import draw

GOLD = [
    CarrierMonth("AA", 1, "American Airlines Inc.", 3, 1, 2, 7, 3.5, 1, -3, -3.0, 150),
    CarrierMonth("AA", 2, None, 1, 1, 0, 0, None, 0, 0, None, 0),
]
KILLED = Measurements(
    begin_s=10.0,
    killed_s=12.0,
    ready_again_s=13.0,
    published_s=15.0,
    samples=[Sample(10.0, 0), Sample(15.0, 4, 4)],
    batches=[BatchReport(0, 4, 11.0, 14.0), BatchReport(1, 0, 14.0, 14.5)],
    progress=[Progress(0, 4, 2.5, 1)],
    born_s={0: [10.0, 11.0, 12.0, 13.0]},
)


@pytest.mark.few(1)
@pytest.mark.parametrize("seen", [KILLED, Measurements()], ids=["a whole run", "nothing observed"])
def test_page_is_written(tmp_path: Path, seen: Measurements) -> None:
    page = tmp_path / "flights.png"
    draw(page, GOLD, seen, "4 messages")
    head = page.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    assert (width, height) == (1800, 1250)
