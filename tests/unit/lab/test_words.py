"""The text that lessons print fits the measured figures, also with figures from other machines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rucola.lab.lesson import Lesson
from rucola.lab.lessons import (
    crash,
    group_commit,
    kafka_reading,
    kafka_writing,
    long_polling,
    sequential_random,
    stream_map,
    to_the_socket,
    transient_pool,
)
from rucola.lab.lessons.crash import ASYNC, CUT, KILL, SYNC
from rucola.lab.readings import REPETITIONS, Readings
from rucola.lab.text import claim_text

Cells = Mapping[str, Mapping[str, Mapping[int | str, float]]]


def said(lesson: Lesson, place: int, cells: Cells) -> str:
    """Returns the text that a lesson prints about a claim if each repetition measures the numbers in ``cells``."""
    readings = Readings("made-up", "normal")
    for quantity, by_series in cells.items():
        for series, by_row in by_series.items():
            for row, value in by_row.items():
                for _ in range(REPETITIONS):
                    readings.add(quantity, series, row, value)
    return claim_text(lesson.claims[place], readings)


def stream(fresh: list[float], warm: list[float]) -> Cells:
    sizes = stream_map.RECORD_BYTES
    calls = dict(zip(sizes, [1.0, 1.5, 3.0, 5.0, 12.0], strict=True))
    ways = {stream_map.WRITE: calls, stream_map.MAP: dict(zip(sizes, fresh, strict=True))}
    ways[stream_map.WARM] = dict(zip(sizes, warm, strict=True))
    faults = {stream_map.MAP: dict.fromkeys(sizes, 160.0), stream_map.WARM: dict.fromkeys(sizes, 0.0)}
    return {"write": ways, "faults": faults}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("fresh", "warm", "verdict", "sentences"),
    [
        (
            [0.2, 0.8, 3.5, 13, 52],
            [0.1, 0.2, 0.4, 1.3, 6],
            "Does not hold here",
            [
                "wins with records of 128 bytes and 1 KiB, a call for each record wins with 4 KiB, 16 KiB and 64 KiB.",
                "160 page faults for each MiB",
                "With warm pages, the map beats a call for each record at every size.",
            ],
        ),
        (
            [0.2, 0.8, 1, 2, 3],
            [2, 2, 4, 6, 13],
            "Holds",
            ["wins at every size.", "Even with warm pages, the map is not faster"],
        ),
        (
            [2, 2, 4, 6, 13],
            [0.1, 2, 4, 6, 13],
            "Does not",
            ["A call for each record wins at", "only with records of 128 bytes."],
        ),
    ],
)
def test_where_a_map_wins(fresh: list[float], warm: list[float], verdict: str, sentences: list[str]) -> None:
    text = said(stream_map.LESSON, 0, stream(fresh, warm))
    assert text.startswith(f"**{verdict}") and all(sentence in text for sentence in sentences), text


def test_records_that_share_a_fault_are_counted() -> None:
    text = said(stream_map.LESSON, 1, stream([0.2, 1, 1, 1, 1], [1] * 5))
    assert "51 such records share one page fault" in text and text.startswith("**Holds")


@pytest.mark.parametrize(
    ("engine", "verdict", "sentences"),
    [
        (
            [199, 215, 279, 507, 1170],
            "Does not",
            ["With 64 and 256 senders, the engine takes at least twice as long", "about 2.62 µs: each record is built"],
        ),
        (
            [199, 215, 279, 300, 520],
            "Holds",
            ["waits 90 µs longer", "108 µs longer. So most of the difference is paid once"],
        ),
        ([100, 150, 170, 200, 400], "Holds", ["One of 256 senders waits no longer with the engine"]),
        ([100, 150, 370, 200, 500], "Does not", ["twice as long. A lone sender waits no longer"]),
    ],
)
def test_the_gain_of_group_commit_is_stated(engine: list[float], verdict: str, sentences: list[str]) -> None:
    plain = [109.0, 162, 178, 217, 412]
    wait = {
        group_commit.PLAIN: dict(zip(group_commit.GROUPS, plain, strict=True)),
        group_commit.ENGINE: dict(zip(group_commit.GROUPS, engine, strict=True)),
    }
    message = {name: {group: us / group for group, us in by_group.items()} for name, by_group in wait.items()}
    text = said(group_commit.LESSON, 2, {"wait": wait, "message": message})  # type: ignore[dict-item]
    assert text.startswith(f"**{verdict}") and all(sentence in text for sentence in sentences), text


@pytest.mark.parametrize(
    ("index", "partition", "verdict", "sentence"),
    [
        (576, 1070, "Does not hold here", "look-up reads 0.538 times as many bytes as the search in"),
        (2140, 1070, "Does not hold here", "look-up reads 2 times as many bytes"),
        (100, 1070, "Holds", "without the index, all messages before the wanted one are read"),
    ],
)
def test_the_saving_of_the_index_is_stated(index: float, partition: float, verdict: str, sentence: str) -> None:
    disk = {kafka_reading.ENGINE: {kafka_reading.BY_KEY: index}, kafka_reading.KAFKA: {kafka_reading.BY_KEY: partition}}
    text = said(kafka_reading.LESSON, 3, {"disk": disk})  # type: ignore[dict-item]
    assert text.startswith(f"**{verdict}") and sentence in text
    assert "(our test: this look-up reads less than half" in text


@pytest.mark.parametrize(
    ("before", "after", "verdict", "sentence"),
    [
        ((107, 23.5), (119, 34), "Holds", "sendfile is slower even without a filter: it takes 4.55 times as long"),
        (
            (20, 40),
            (60, 50),
            "Holds",
            "Without a filter, sendfile takes 0.5 times as long as a gathered write; with a filter, 1.2",
        ),
        (
            (20, 40),
            (30, 50),
            "Does not",
            "Without a filter, sendfile takes 0.5 times as long as a gathered write; with a filter, 0.6",
        ),
    ],
)
def test_the_cost_of_a_filter_for_sendfile_is_stated(
    before: tuple[float, float], after: tuple[float, float], verdict: str, sentence: str
) -> None:
    ways = to_the_socket.SENDFILE, to_the_socket.GATHER
    cells = {
        quantity: {way: {1024: value} for way, value in zip(ways, values, strict=True)}
        for quantity, values in (("far", before), ("filter", after))
    }
    text = said(to_the_socket.LESSON, 4, cells)  # type: ignore[arg-type]
    assert text.startswith(f"**{verdict}") and sentence in text


@pytest.mark.parametrize(
    ("clean", "dirty", "sentence"),
    [
        (5.1, 1.1, "nearly every unit of 20 bytes makes a different page dirty"),
        (1.1, 1.1, "hardly more than with queue files that are still dirty"),
    ],
)
def test_the_saving_of_dirty_queue_files_is_stated(clean: float, dirty: float, sentence: str) -> None:
    sizes = {kafka_writing.CLEAN: clean, kafka_writing.PLAIN: dirty, kafka_writing.KAFKA: 4.0}
    text = said(kafka_writing.LESSON, 4, {"pages": {name: {1: 1.1, 10_000: kib} for name, kib in sizes.items()}})
    assert sentence in text and f"makes {clean} KiB of pages dirty" in text


def test_from_how_many_queues_on_it_matters() -> None:
    many = {
        kafka_writing.KAFKA: {1: 10.0, 1000: 35.0, 10_000: 118.0},
        kafka_writing.PLAIN: {1: 5.0, 1000: 6.0, 10_000: 16.5},
    }
    text = said(kafka_writing.LESSON, 0, {"durable": many})  # type: ignore[dict-item]
    assert "With one queue, a log per partition takes 2 times as long as one log" in text
    assert "with the most queues, 7.15 times as long." in text
    assert text.endswith("takes more than three times as long in these cases: 1,000 and 10,000 queues.")
    few = {kafka_writing.KAFKA: {1: 10.0, 10_000: 12.0}, kafka_writing.PLAIN: {1: 5.0, 10_000: 6.0}}
    text = said(kafka_writing.LESSON, 0, {"durable": few})  # type: ignore[dict-item]
    assert text.startswith("**Does not") and text.endswith("takes more than three times as long in these cases: none.")


def test_losses_of_a_crash_are_stated_also_if_there_are_none() -> None:
    rows = {SYNC.value: 191.0, ASYNC.value: 191.0}
    for lost, killed, sentences in (
        (
            0.0,
            0.0,
            ("no acknowledged message is missing in any of 191", "no acknowledged message is missing in total"),
        ),
        (1.0, 1.0, ("1 acknowledged message is missing in the worst of 191", "2 acknowledged messages are missing")),
    ):
        states = {"states of the disk": rows, CUT: dict.fromkeys(rows, lost), KILL: dict.fromkeys(rows, killed)}
        texts = [said(crash.LESSON, place, {"states": states}) for place in (0, 2)]  # type: ignore[dict-item]
        assert all(sentence in text for sentence, text in zip(sentences, texts, strict=True))


def test_the_pool_puts_at_risk_as_much_as_the_worst_repetition_showed() -> None:
    readings = Readings("made-up", "normal")
    for kib in (6_210.0, 8_420.0, 11_500.0, 7_000.0, 9_000.0):
        readings.add("memory", transient_pool.POOL, "most at a time", kib)
        readings.add("memory", transient_pool.MAP, "most at a time", 0)
    text = claim_text(transient_pool.LESSON.claims[2], readings)
    assert "up to 11,500 KiB" in text and "(in the median repetition 8,420 KiB)" in text


@pytest.mark.parametrize(
    ("pool", "sentence"),
    [(1000.0, "shortens the longest append to less"), (6410.0, "so writeback is not what delays it")],
)
def test_whether_the_pool_shortens_the_longest_append(pool: float, sentence: str) -> None:
    most, longest = transient_pool.MOST, transient_pool.LONGEST
    append = {transient_pool.POOL: {most: 50.0, longest: pool}, transient_pool.MAP: {most: 270.0, longest: 7000.0}}
    text = said(transient_pool.LESSON, 0, {"append": append})  # type: ignore[dict-item]
    assert text.startswith("**Holds") and sentence in text


def test_memory_is_what_the_page_cache_is_compared_with() -> None:
    for memory, verdict in ((20_000.0, "Holds"), (30_000.0, "Does not")):
        read = {sequential_random.WARM: 11_000.0, sequential_random.MEMORY: memory}
        cells = {"read": {name: {sequential_random.IN_ORDER: speed} for name, speed in read.items()}}
        text = said(sequential_random.LESSON, 3, cells)  # type: ignore[arg-type]
        assert text.startswith(f"**{verdict}") and f"{memory:,.0f} MiB/s from memory" in text


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (123.0, "four messages share a block"),
        (200.0, "about as long in each"),
        (400.0, "but the times differ: 400 µs in one log"),
    ],
)
def test_a_single_message_in_each_layout(log: float, sentence: str) -> None:
    single = {sequential_random.LOG: log, sequential_random.FILES: 193.0, sequential_random.PLACES: 230.0}
    hundred = {sequential_random.LOG: 4.0, sequential_random.FILES: 116.0, sequential_random.PLACES: 17.0}
    cells = {"durable": {name: {1: single[name], 100: hundred[name]} for name in single}}
    text = said(sequential_random.LESSON, 0, cells)  # type: ignore[arg-type]
    assert text.startswith("**Holds") and sentence in text
    assert ("four messages" in text) == (log == min(single.values()) and log < 150)


def test_long_polling_says_where_it_saves_requests() -> None:
    held, short = {1: 1.0, 100: 93.0, 2000: 1330.0}, {1: 98.0, 100: 160.0, 2000: 257.0}
    cells = {
        "requests": {
            long_polling.HELD: held,
            long_polling.SHORT_10: short,
            long_polling.PUSHED: dict.fromkeys(held, 0.0),
        }
    }
    text = said(long_polling.LESSON, 3, cells)  # type: ignore[arg-type]
    assert text.startswith("**Does not hold here")
    assert "Only at 1 and 100 messages a second does long polling need fewer requests" in text
    assert "0.665 requests per message" in text
