"""What a crash leaves: every state that the disk may have at each moment, and what recovery makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from rucola.errors import ConfigError, RucolaError
from rucola.lab.engine import message
from rucola.lab.lesson import Claim, Lesson, Quantity
from rucola.lab.readings import Listing, Readings
from rucola.lab.workbench import Workbench
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.testing.crash_states import NOTHING_LOST, CrashState, all_states, crash_states
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.store_life import ROOT, StoreLife, check_recovered, empty_disk
from rucola.testing.store_model import Mismatch, StoreModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYNC, ASYNC = FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH
ANSWERED, FEWEST, MOST, KILLED = "answered to senders", "fewest found again", "most found again", "after a kill only"
CUT, KILL = "answered messages that a power cut takes, at most", "that a kill takes, at most"
MOMENT = 50
"""Shown in full: the second sync of the log."""
BROKEN = -1
"""In place of a number of messages: the store broke a promise there."""


@dataclass
class Moment:
    """A call to the disk, and what is known just before it is made."""

    number: int
    call: str
    answered: int
    model: StoreModel
    whole: list[CrashState]
    torn: list[CrashState]


def moments(flush: FlushDiskType, seed: int, messages: int) -> list[Moment]:
    """All moments of a short life of the real engine on a disk in memory, which knows what is not synced yet."""
    found: list[Moment] = []
    random = Random(seed)
    life = StoreLife(empty_disk(), config(flush))
    sent = 0

    def before_each_call(kind: str, path: str) -> None:
        model = life.model.copy()
        model.acked_end = life.promised_end
        on_disk = sum(record.end <= life.promised_end for record in model.records)
        answered = on_disk if flush is SYNC else sent
        whole = list(all_states(life.disk))
        torn = [one for one in crash_states(life.disk, random, 8, randoms=8) if one.choice.startswith("torn")]
        found.append(Moment(life.disk.steps, f"{kind} {short(path)}", answered, model, whole, torn))

    life.open()
    life.disk.observer = before_each_call
    for number in range(messages):
        life.put(message(number, 300))
        sent += 1
        if number % 3 == 1:
            life.flush()  # what the flush thread does
        if number % 2 == 0 and number:
            life.dispatch()  # what makes queue units
        if number % 4 == 3:
            life.keep()  # what syncs the queues now and then
    life.stop()
    life.disk.observer = None
    return found


def config(flush: FlushDiskType) -> MessageStoreConfig:
    """Tiny files: a segment of the log is one page."""
    return MessageStoreConfig(
        store_path_root_dir=ROOT,
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=200,
        message_index_enable=False,
        flush_disk_type=flush,
        flush_commit_log_least_pages=0,
        flush_consume_queue_thorough_interval_ms=1,
    )


def recovered(flush: FlushDiskType, state: CrashState, model: StoreModel) -> int:
    """How many messages a start on this state finds; each is compared with what was sent."""
    life = StoreLife(SimulatedDisk.of(state.image), config(flush), model)
    try:
        life.load()
        return len(check_recovered(life).records)
    except (Mismatch, RucolaError):
        return BROKEN


def run(bench: Workbench) -> None:
    """Power fails before every call to the disk; each repetition tears other pages."""
    listed: list[Moment] = []
    for seed in bench.repetitions():
        for flush in (SYNC, ASYNC):
            states = broken = lost = killed = 0
            listed = moments(flush, seed, bench.choose(3, 6, 12))[:: bench.choose(4, 1, 1)]
            for one in listed:
                whole = {state.choice: recovered(flush, state, one.model) for state in one.whole}
                counts = [*whole.values(), *(recovered(flush, state, one.model) for state in one.torn)]
                states += len(counts)
                broken += counts.count(BROKEN)
                lost = max(lost, one.answered - min(counts))
                killed = max(killed, one.answered - whole[NOTHING_LOST])
                name = flush.value
                bench.note(name, ANSWERED, one.number, one.answered)
                bench.note(name, FEWEST, one.number, min(counts))
                bench.note(name, MOST, one.number, max(counts))
                bench.note(name, KILLED, one.number, whole[NOTHING_LOST])
            bench.note("states", "states of the disk", flush.value, states)
            bench.note("states", "of them recovered wrongly", flush.value, broken)
            bench.note("states", CUT, flush.value, lost)
            bench.note("states", KILL, flush.value, killed)
    header = ["moment: before", "call", "states with whole pages"]
    rows = [[str(one.number), one.call, str(len(one.whole))] for one in listed]
    bench.show("Moments under ASYNC_FLUSH", header, rows)
    bench.readings.listings.extend(every_state(MOMENT))


def short(text: str) -> str:
    """Without the name of the store's directory, and file names without most of their zeros."""
    return text.replace(f"{ROOT}/", "").replace("0" * 16, "..")


def every_state(number: int) -> list[Listing]:
    """All states with whole pages at one moment under ASYNC_FLUSH, and what recovery makes of each.

    Raises:
        ConfigError: there is no such moment.
    """
    found = {one.number: one for one in moments(ASYNC, 0, 6)}
    if number not in found:
        raise ConfigError("--moment", str(number), f"{min(found)} to {max(found)}")
    one = found[number]
    rows = [[short(state.choice), str(recovered(ASYNC, state, one.model))] for state in one.whole]
    title = f"Power fails at moment {number}, before: {one.call}. {one.answered} messages were answered"
    return [Listing(title, ["what the disk kept", "messages found again"], rows)]


def draw(figure: Figure, readings: Readings) -> None:
    """A band between the fewest and the most found again, and the messages answered as a line."""
    for place, flush in enumerate((SYNC, ASYNC)):
        axes = figure.add_subplot(1, 2, place + 1)
        numbers = readings.medians()[flush.value]
        at = [int(row) for row in numbers[ANSWERED]]
        low, high, answered = (list(numbers[name].values()) for name in (FEWEST, MOST, ANSWERED))
        band = "found again after a power cut: fewest to most"
        axes.fill_between(at, low, high, step="post", color="#0072B2", alpha=0.25, label=band)
        axes.step(at, low, where="post", color="#0072B2", linewidth=1)
        axes.step(at, answered, where="post", color="#D55E00", linewidth=2, linestyle="--", label=ANSWERED)
        axes.set(xlabel="moment: number of the call to the disk", ylabel="messages", title=flush.value, ylim=(0, None))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize=9)


LESSON = Lesson(
    title="What a crash leaves: every legal state of the files, and what recovery makes of it",
    intro=(
        "When power fails, the disk holds what was synced, and of everything else whatever it happened to write: each "
        "page, each file's length, each new or removed name may be there or not, and a page may be **torn** between an "
        "old and a new version at 512 bytes. A process that is killed loses nothing of that: its files are as it saw "
        "them. The real engine runs here on a disk in memory that keeps account of all this. Before every call to the "
        "disk power fails, in every way there is with whole pages and in some with torn ones; the engine starts on "
        "each state, and what it finds is compared with what was sent. `rucola lab run crash --moment N` shows all "
        "states of one moment."
    ),
    design=(
        "Recovery walks the log to the last record that is whole, keeps what it cuts in `quarantine/`, and makes queue "
        "units again from the log. `make crash` does the same with segments that roll, index, pool, deletion and "
        "failing disks, 110,000 states a run."
    ),
    quantities=(
        Quantity(SYNC.value, "SYNC_FLUSH", "messages", "moment: number of the call to the disk", linear=True),
        Quantity(ASYNC.value, "ASYNC_FLUSH", "messages", "moment: number of the call to the disk", linear=True),
        Quantity("states", "States and losses", "count", "way to flush", drawn=False),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "with synchronous flush a message that was answered survives a power cut",
            lambda n: n["states"][CUT][SYNC.value] == 0,
            f"in {{states[states of the disk][SYNC_FLUSH]}} states of the disk at most {{states[{CUT}][SYNC_FLUSH]}} "
            "answered messages are missing",
            "The line of what is found again never falls below that of what was answered.",
            "There is a moment at which an answered message is lost: that is a defect, please report it.",
        ),
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "with asynchronous flush a message is answered when it is in the page cache, which a power cut may take",
            lambda n: n["states"][CUT][ASYNC.value] > 0,
            f"in {{states[states of the disk][ASYNC_FLUSH]}} states of the disk up to {{states[{CUT}][ASYNC_FLUSH]}} "
            "answered messages are missing",
            "Between two syncs the fewest found again are fewer than those answered.",
            "No state was found in which an answered message is lost.",
        ),
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "the end of the process alone takes no answered message, with either way to flush",
            lambda n: sum(n["states"][KILL].values()) == 0,
            f"at most {{states[{KILL}][SYNC_FLUSH]}} messages are missing with SYNC_FLUSH and "
            f"{{states[{KILL}][ASYNC_FLUSH]}} with ASYNC_FLUSH, whenever the process is killed",
            "What was stored through a map or by a call is the system's.",
            "At some moment a killed process loses an answered message: that is a defect, please report it.",
        ),
        Claim(
            "This project",
            "every state the disk may have is recovered to a prefix of what was sent, byte for byte",
            lambda n: sum(n["states"]["of them recovered wrongly"].values()) == 0,
            "{states[of them recovered wrongly][SYNC_FLUSH]} and {states[of them recovered wrongly][ASYNC_FLUSH]} "
            "states were not",
            "A record counts only if its checksums hold, and queue units count only if the log agrees.",
            "That is a defect, please report it.",
        ),
    ),
    space_bytes=lambda size: 1 << 20,
    run=run,
    draw=draw,
    moment=every_state,
)
