"""The states in which a crash at each moment may leave a disk, and the result of recovery from each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from rucola.errors import ConfigError, RucolaError
from rucola.lab.engine import message
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity
from rucola.lab.picture import COLORS
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
ANSWERED, FEWEST, MOST, KILLED = "acknowledged", "fewest found again", "most found again", "after a kill only"
CUT, KILL = "acknowledged messages lost in a power cut, at most", "acknowledged messages lost in a kill, at most"
MOMENT = 50
"""The moment whose states the report shows in full: the second sync of the log."""
SHOWN_MAX = 60
"""Largest number of labels that fit below the picture."""
BROKEN = -1
"""Result of ``recovered`` if the store broke a promise or did not load."""


@dataclass
class Moment:
    """The time just before a call to the disk or an acknowledgement, and what may be on the disk then."""

    number: int
    call: str
    answered: int
    model: StoreModel
    whole: list[CrashState]
    torn: list[CrashState]


def moments(flush: FlushDiskType, seed: int, messages: int) -> list[Moment]:
    """Returns all moments of a short run of the real engine on a simulated disk, which knows what is not synced yet."""
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
            life.flush()  # like the flush thread
        if number % 2 == 0 and number:
            life.dispatch()  # like the thread that makes queue units
        if number % 4 == 3:
            life.keep()  # like the regular sync of queues
    life.stop()
    life.disk.observer = None
    return found


def config(flush: FlushDiskType) -> MessageStoreConfig:
    """Returns options for tiny files: a segment of the log is one page."""
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
    """Starts the engine on this state, checks the messages found; returns their number, or ``BROKEN``."""
    life = StoreLife(SimulatedDisk.of(state.image), config(flush), model)
    try:
        life.load()
        return len(check_recovered(life).records)
    except (Mismatch, RucolaError):
        return BROKEN


def run(bench: Workbench) -> None:
    """Cuts the power before every call to the disk; each repetition tears different pages."""
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
    header = ["moment: before", "call", "states without torn pages"]
    rows = [[str(one.number), one.call, str(len(one.whole))] for one in listed]
    bench.show("Moments under ASYNC_FLUSH", header, rows)
    bench.readings.listings.extend(every_state(MOMENT))


def short(text: str) -> str:
    """Removes the name of the store's directory, and most zeros of file names."""
    return text.replace(f"{ROOT}/", "").replace("0" * 16, "..")


def every_state(number: int) -> list[Listing]:
    """Returns all states in which no page is torn, at one moment under ASYNC_FLUSH, each with the result of recovery.

    Raises:
        ConfigError: there is no such moment.
    """
    found = {one.number: one for one in moments(ASYNC, 0, 6)}
    if number not in found:
        raise ConfigError("--moment", str(number), f"{min(found)} to {max(found)}")
    one = found[number]
    rows = [[short(state.choice), str(recovered(ASYNC, state, one.model))] for state in one.whole]
    title = f"Power fails at moment {number}, just before `{one.call}`. {one.answered} messages were acknowledged"
    return [Listing(title, ["what the disk kept", "messages found again"], rows)]


def draw(figure: Figure, readings: Readings) -> None:
    """Draws a band from the fewest to the most messages found again after a power cut, points for those found again
    after a kill, and a line for the acknowledged messages.
    """
    figure.set_size_inches(10.8, 8.6)
    calls = {int(row[0]): f"{row[1]}  {row[0]}" for row in readings.listings[0].rows}
    for place, flush in enumerate((SYNC, ASYNC)):
        axes = figure.add_subplot(2, 1, place + 1)
        numbers = readings.medians()[flush.value]
        at = [int(row) for row in numbers[ANSWERED]]
        low, high, answered, killed = (list(numbers[name].values()) for name in (FEWEST, MOST, ANSWERED, KILLED))
        ends = [moment - 0.5 for moment in [*at, at[-1] + (at[-1] - at[-2])]]
        axes.stairs(
            high, ends, baseline=low, fill=True, color=COLORS[0], alpha=0.25, label=f"power cut: {FEWEST} to most"
        )
        axes.stairs(low, ends, baseline=None, color=COLORS[0], linewidth=3, label=f"power cut: {FEWEST}")
        axes.plot(at, killed, color=COLORS[2], linestyle="", marker="x", markersize=6, label="kill: found again")
        axes.stairs(answered, ends, baseline=None, color=COLORS[1], linewidth=1.5, linestyle="--", label=ANSWERED)
        axes.set(ylabel="messages", ylim=(-0.3, None), xlim=(ends[0], ends[-1]))
        axes.set_title(flush.value, loc="left")
        shown = at if len(at) <= SHOWN_MAX else at[:: -(-len(at) // SHOWN_MAX)]
        axes.set_xticks(shown, [calls[moment] if place else "" for moment in shown], rotation=90, fontsize=7)
        if place == 0:
            axes.legend(loc="lower right", fontsize=9)
    axes.set_xlabel("moment: the time just before this call to the disk, with the number of the call")


def say_missing(n: Numbers, flush: FlushDiskType) -> str:
    """Says how many acknowledged messages are lost in the worst power cut."""
    states, lost = n["states"]["states of the disk"][flush.value], n["states"][CUT][flush.value]
    if lost == 0:
        return f"no acknowledged message is missing in any of {states} states of the disk"
    return f"{say_count(lost)} missing in the worst of {states} states of the disk"


def say_count(lost: float) -> str:
    """Returns the beginning of a sentence about ``lost`` messages."""
    return {0: "no acknowledged message is", 1: "1 acknowledged message is"}.get(
        int(lost), f"{int(lost)} acknowledged messages are"
    )


LESSON = Lesson(
    title="What a crash leaves: the states that files may be in, and what recovery makes of them",
    intro=(
        "When power fails, the disk holds everything that was synced. Any other change may or may not have reached the "
        "disk: a changed page, a file's new length, a created or removed file name. A page may be **torn**: some of "
        "its sectors of 512 bytes are new, and the others are old. A killed process loses nothing that it had already "
        "written to its files. The real engine runs here on a simulated disk in memory, which knows what is synced. "
        "The simulation cuts the power before every call to the disk. For each cut it makes one state for every "
        "combination of unsynced changes that may have reached the disk, and a sample of states with torn pages. The "
        "engine starts on each of these states, and the program compares the messages that the engine finds with the "
        "messages that were sent. A **moment** is the time just before a call, or before the store acknowledges "
        "messages (`ack`). The table of each flush mode shows the fewest and the most messages that the engine finds "
        "again after a power cut at each moment. The column *after a kill only* shows how many messages the engine "
        "finds if the process is killed while the power stays on. `rucola lab run crash --moment N` shows all states "
        "without torn pages at moment N."
    ),
    design=(
        "Recovery walks the log to the last whole record. It copies the bytes after this record to `quarantine/`, and "
        "then zeroes them in the log. Missing queue units are rebuilt from the log. `make crash` also simulates "
        "crashes with several segments, the index, the transient pool, deletion and failing disks. With the transient "
        "pool, a kill does lose acknowledged messages: see lesson `transient-pool`."
    ),
    quantities=(
        Quantity(SYNC.value, "SYNC_FLUSH", "messages", "moment: number of the call to the disk", linear=True),
        Quantity(ASYNC.value, "ASYNC_FLUSH", "messages", "moment: number of the call to the disk", linear=True),
        Quantity("states", "States and losses", "count", "flush mode", drawn=False),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "with synchronous flush, an acknowledged message survives a power cut",
            lambda n: n["states"][CUT][SYNC.value] == 0,
            lambda n: say_missing(n, SYNC),
            "In every state the store finds at least the messages that were acknowledged.",
            "There is a moment at which an acknowledged message is lost: that is a defect, please report it.",
        ),
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "with asynchronous flush, a message is acknowledged when it is in the page cache, whose content may be "
            "lost in a power cut",
            lambda n: n["states"][CUT][ASYNC.value] > 0,
            lambda n: say_missing(n, ASYNC),
            "Between two syncs, fewer messages may be found again than were acknowledged.",
            "A longer run might lose an acknowledged message: try `--size large`.",
        ),
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "if only the process dies, no acknowledged message is lost, in either flush mode",
            lambda n: sum(n["states"][KILL].values()) == 0,
            lambda n: (
                f"with a kill at the worst moment of each flush mode, {say_count(sum(n['states'][KILL].values()))} "
                "missing in total"
            ),
            "The operating system keeps the bytes that the process stored in a map or passed to a write call.",
            "At some moment a killed process loses an acknowledged message: that is a defect, please report it.",
        ),
        Claim(
            "This project",
            "from each state that was tried, recovery restores a prefix of what was sent, byte for byte",
            lambda n: sum(n["states"]["of them recovered wrongly"].values()) == 0,
            "{states[of them recovered wrongly][SYNC_FLUSH]} of {states[states of the disk][SYNC_FLUSH]} states "
            "failed with SYNC_FLUSH, {states[of them recovered wrongly][ASYNC_FLUSH]} of "
            "{states[states of the disk][ASYNC_FLUSH]} with ASYNC_FLUSH",
            "A record counts only if its checksums hold, and queue units count only if the log agrees.",
            "That is a defect, please report it.",
        ),
    ),
    space_bytes=lambda size: 1 << 20,
    run=run,
    draw=draw,
    moment=every_state,
)
