"""A pair at work, held against what is promised after each turn: see ``Pair``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random

from tests.crash.pair_ledger import CODES, OK, Broken, Ledger, Send, log_bytes, queue_files, synced_to
from tests.crash.pair_life import SEGMENT, Liar, MasterProcess, PairOptions, SlaveBrokerProcess, SlaveProcess
from tests.crash.workloads import HOST

from rucola.broker.ha.master import SILENCE_S
from rucola.common.message import StoreMessage
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.ha import TRANSFER_HEADER, decode_reports
from rucola.formats.message import BLANK, MAGIC_V1, MAGIC_V2
from rucola.protocol.codes import ResponseCode
from rucola.store.ha.slave_state import SlaveState
from rucola.store.results import StoreState
from rucola.testing.clock import ManualClock
from rucola.testing.crash_states import NOTHING_LOST, CrashState
from rucola.testing.fault_plan import FaultPlan
from rucola.testing.manual_worker import ManualWorker
from rucola.testing.simulated_disk import Inode, SimulatedDisk
from rucola.testing.simulated_loop import SimulatedLoop
from rucola.testing.simulated_network import Direction, SimulatedNetwork, SimulatedTransport
from rucola.testing.store_life import ROOT, empty_disk

_BODY_AT = 90
"""Position of a byte of the body in a record; each body has at least 30 bytes."""
_TURNS_MAX = 60
_ANSWERED_S = 8.01
"""``syncFlushTimeout`` and then ``slaveTimeout``, in seconds."""
_TROUBLE_S = 60
"""Seconds after which all have noticed trouble: a peer may be half dead for 20 s, and some pauses are 10 s."""
_CALM_S = 25
"""Seconds after which silence would have ended a connection."""


class Pair:
    """A master and its slaves.

    Each report, each byte that the master sends and each response is checked when it is written.

    Attributes:
        options: how they are configured.
        network: what connects them.
        disks: the disks of the master and of the slaves, by name.
        master, slaves: the processes that run.
        liars: who else is connected to the master.
        ledger: what was sent and heard.
        corrupts: whether the network changes a byte of the next transfer.
        plans: how disks fail, by name.

    Args:
        random: source of messages.
        disks: the disks; empty ones if not given.
        ledger: what has happened before.
    """

    def __init__(
        self,
        options: PairOptions,
        random: Random,
        disks: dict[str, SimulatedDisk] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.options = options
        self.clock = ManualClock()
        self.network = SimulatedNetwork(self._watch)
        self.names = [f"slave{number}" for number in range(options.slaves)]
        self.disks = disks or {name: empty_disk() for name in ("master", *self.names)}
        self.master: MasterProcess | None = None
        self.slaves: dict[str, SlaveProcess] = {}
        self.liars: list[Liar] = []
        self.ledger = ledger or Ledger()
        self.lost_power: set[str] = set()
        self.corrupts = False
        self.plans: dict[str, FaultPlan] = {}
        self._failed: set[str] = set()
        self._flips = 0
        self._works = False
        self._random = random
        self._found: list[str] = []
        """Broken promises that the code under test must not see as errors, because it handles them."""
        self._sent = max(self.ledger.sends, default=0)

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """Starts the master, if its disk lets it."""
        ledger = self.ledger
        try:
            master = MasterProcess(self.disks["master"], self.options, self.clock, self.network, self._answered)
        except (DiskError, StoreDamagedError) as error:
            self._must_have_failed("master", error)
            return
        ledger.recovered(master.store, "master" in self.lost_power)
        self.lost_power.discard("master")
        if self.options.sync_flush:
            ahead = {name: slave.log.end_offset for name, slave in self.slaves.items()}
            if any(end > len(ledger.log) for end in ahead.values()):
                raise Broken(f"the master's log ends at {len(ledger.log)} after its start, those of slaves at {ahead}")
        self.master = master
        self.network.restore_power("master")

    def start_slave(self, name: str) -> None:
        """Starts a slave, if its disk lets it."""
        kind = SlaveBrokerProcess if self.options.are_brokers else SlaveProcess
        try:
            slave = kind(name, self.disks[name], self.options, self.clock, self.network)
        except (DiskError, StoreDamagedError) as error:
            self._must_have_failed(name, error)
            return
        end, reported = slave.log.end_offset, self.ledger.reported.get(name, 0)
        if end < reported:
            raise Broken(f"the log of {name} ends at {end} after its start, and {reported} was reported")
        if name not in self.lost_power and end < (checked := self.ledger.checked.get(name, 0)):
            raise Broken(
                f"the log of {name} ends at {end} after its start, and at {checked} before, without a power cut"
            )
        self.slaves[name] = slave
        self.lost_power.discard(name)
        self._check_slave(slave)
        self.network.restore_power(name)

    def end(self, name: str, image: CrashState | None = None) -> None:
        """Ends a process: kills it, or with ``image`` cuts its power."""
        process = self._process(name)
        if process is None:
            return
        if image is not None:
            self.network.lost_power(process.loop, self._random)
        process.loop.kill()
        self._gone(name)
        if image is not None:
            self._replace_disk(name, SimulatedDisk.of(image.image))
            if image.choice != NOTHING_LOST:
                self.lost_power.add(name)
                self.ledger.checked.pop(name, None)

    def stop(self, name: str) -> None:
        """Stops a process cleanly."""
        process = self._process(name)
        if process is None:
            return
        process.stop()
        if name == "master" and any(send.is_waiting and send.code is None for send in self.ledger.sends.values()):
            raise Broken("the master has stopped, and senders wait")
        self._check_end(name, process.store.max_offset)
        self._gone(name)

    def _check_end(self, name: str, end: int) -> None:
        """Checks that nothing follows the log of a process that has stopped, or that the next start is to look."""
        names = self.disks[name].names
        file = names.get(f"{ROOT}/commitlog/{end - end % SEGMENT:020d}")
        if isinstance(file, Inode) and f"{ROOT}/abort" not in names and any(file.data[end % SEGMENT :]):
            raise Broken(f"{name} has stopped cleanly, and bytes follow the end of its log")

    def new_slave(self, name: str) -> None:
        """Gives a slave an empty disk."""
        self.end(name)
        self._replace_disk(name, empty_disk())
        self.ledger.reported.pop(name, None)
        self.ledger.checked.pop(name, None)
        self.ledger.copied_end = 0

    def promote(self, name: str) -> None:
        """The master's disk is lost; the directory of a slave that runs becomes the master's, all slaves begin anew.

        Raises:
            Broken: what senders were told is not there.
        """
        log = self._log_of(self.slaves[name])
        self.end("master")
        for each in self.names:
            self.end(each)
        self._replace_disk("master", self.disks[name])
        for each in self.names:
            self._replace_disk(each, empty_disk())
        self.ledger.promoted(log)

    def _replace_disk(self, name: str, disk: SimulatedDisk) -> None:
        """Puts another disk in place of one. Whoever watches one watches the other, too; its faults go on."""
        disk.observer, disk.faults = self.disks[name].observer, self.disks[name].faults
        self.disks[name] = disk

    def spoil(self, name: str, plan: FaultPlan) -> None:
        """From now on, calls of a disk fail as planned."""
        if self._has_failed(name):
            self._failed.add(name)
        self.plans[name] = self.disks[name].faults = plan

    def mend(self) -> None:
        """From now on, no disk is full, and none fails. What has failed before is remembered by the processes."""
        for name, plan in self.plans.items():
            plan.end()
            self.disks[name].faults = None

    def _has_failed(self, name: str) -> bool:
        """Whether a call of a disk has ever failed."""
        return name in self._failed or (name in self.plans and self.plans[name].fired)

    def _must_have_failed(self, name: str, error: DiskError | StoreDamagedError) -> None:
        """Raises an error of a disk if this disk has not failed. What cannot be read counts as damaged, but not when
        the disk is sound again.
        """
        if not self._has_failed(name) or (isinstance(error, StoreDamagedError) and self.disks[name].faults is None):
            raise Broken(f"the disk of {name} is sound: {error}") from error

    def needs_restart(self, name: str) -> bool:
        """Whether a process runs whose disk has failed so that only a restart helps."""
        process = self._process(name)
        return process is not None and process.store.state is StoreState.IO_ERROR

    def _gone(self, name: str) -> None:
        if name != "master":
            del self.slaves[name]
            return
        self.master = None
        for send in self.ledger.sends.values():
            send.is_waiting = False

    def _process(self, name: str) -> MasterProcess | SlaveProcess | None:
        return self.master if name == "master" else self.slaves.get(name)

    def processes(self) -> list[MasterProcess | SlaveProcess]:
        """All processes that run."""
        return [*([self.master] if self.master is not None else []), *self.slaves.values()]

    def end_liars(self) -> None:
        """Ends the connections of liars."""
        for liar in self.liars:
            liar.loop.kill()
        self.liars.clear()

    def kill_all(self) -> None:
        """Ends all processes."""
        self.end_liars()
        for process in self.processes():
            process.loop.kill()

    # -- work ----------------------------------------------------------------------------------------------------------

    def put(self, size: int = 200) -> None:
        """A producer sends a message; those of one size have records of one size, also in logs that differ."""
        master = self.master
        if master is None:
            return
        self._sent += 1
        number = self._sent
        body = self._random.randbytes(size)
        sent = StoreMessage(b"T%d" % (number % 2), number % 3 % 2, body, b"UNIQ_KEY\x01%08x\x02" % number, 0, HOST)
        end, code = master.put(sent)
        self.ledger.written(master.store)
        if end < 0:
            if not self._has_failed("master"):
                raise Broken(f"the master refuses a message with {code.name}, it is {master.store.state}")
            self.ledger.sends[number] = Send(-1, self.clock.monotonic(), int(code))
            return
        self.ledger.sends[number] = Send(end, self.clock.monotonic())
        if not self._works and self._random.random() < 0.1:
            self.work(master, 1, None)  # the thread may be as fast as that
        master.answer(number, end)

    def work(self, process: MasterProcess | SlaveProcess, number: int, meanwhile: Callable[[], None] | None) -> None:
        """Runs a thread of a store once. ``meanwhile`` is called during its first sync."""
        if process.store._lock is not None and number < len(workers := process.workers()):
            self._run(process, workers[number], meanwhile)

    def _run(
        self, process: MasterProcess | SlaveProcess, worker: ManualWorker, meanwhile: Callable[[], None] | None = None
    ) -> None:
        self._works, process.disk.meanwhile = True, meanwhile
        worker.run()
        self._works, process.disk.meanwhile = False, None

    def advance(self, milliseconds: int) -> None:
        """Lets time pass."""
        self.clock.advance(milliseconds)

    def turn(self) -> None:
        """Runs all event loops until nothing is due, and checks what they did."""
        for _ in range(_TURNS_MAX):
            due = [process.loop for process in (*self.processes(), *self.liars) if process.loop.is_due]
            if not due:
                break
            for loop in due:
                loop.run_due()
        self.look()

    # -- promises ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compares what the processes show with what was sent.

        Raises:
            Broken: a promise is broken.
        """
        if self._found:
            raise Broken(self._found[0])
        for process in self.processes():
            if process.loop.unhandled:
                raise Broken(f"{process.loop.host}: {process.loop.unhandled}")
        if self.master is not None:
            self._check_master(self.master)
        for slave in list(self.slaves.values()):
            slave.look()
            self._check_slave(slave)
            if slave.failed is not None and not self._works:  # a stop waits for the threads
                self._must_have_failed(slave.name, slave.failed)
                self.stop(slave.name)

    def _check_master(self, master: MasterProcess) -> None:
        if failures := {work: count for work, count in master.supervisor.failures.items() if count}:
            raise Broken(f"failures of the master: {failures}")
        waiting = [send for send in self.ledger.sends.values() if send.is_waiting and send.code is None]
        if (not waiting) != (not master.sender.owed):
            raise Broken(f"{len(waiting)} senders wait, and {master.sender.owed} bytes are owed")
        latest_s = self.clock.monotonic() - _ANSWERED_S
        if any(send.sent_s < latest_s for send in waiting):
            raise Broken(f"senders wait for more than {_ANSWERED_S} s")
        if len(master.replication.waiters) and len(master.server.slaves) < master.replication.needed:
            raise Broken(f"senders wait for slaves, and there are {len(master.server.slaves)}")
        silent_s = [self.clock.monotonic() - channel._read_s for channel in master.server.slaves]
        if max(silent_s, default=0) > SILENCE_S + 2:
            raise Broken(f"slaves count that were silent for {silent_s} s")
        if any(liar.is_believed for liar in self.liars):
            raise Broken("a liar is believed")
        liars = self.network.address_of("liar")
        reasons = [why for peer, why in master.closed if not peer.startswith(f"{liars}:")]
        if any(why.startswith("the slave reports") for why in reasons):
            raise Broken(f"slaves were closed, although they said the truth: {reasons}")

    def _check_slave(self, slave: SlaveProcess) -> None:
        end = slave.log.end_offset
        if end not in self.ledger.ends or not self.ledger.is_known(log_bytes(slave.store, 0, end)):
            raise Broken(f"the log of {slave.name} up to {end} is none that its master has had")
        store = slave.store
        if max(store.max_offset, store.confirm_offset, store._dispatcher.position, store.flushed_offset) > end:
            raise Broken(f"readers of {slave.name} see more than {end}")
        if end < self.ledger.checked.get(slave.name, 0):
            raise Broken(f"{slave.name} has lost what was behind {end}")
        self.ledger.checked[slave.name] = end
        if slave.log.received_offset < end:
            raise Broken(f"{slave.name} has received {slave.log.received_offset} and has {end}")

    def _watch(self, loop: SimulatedLoop, transport: SimulatedTransport, data: bytes) -> bytes:
        """Checks what is written to a connection; returns what is sent instead."""
        if loop.host != "master":
            if loop.host in self.slaves:
                self._check_reports(loop.host, data)
            return data
        start, length = TRANSFER_HEADER.unpack(data[: TRANSFER_HEADER.size])
        content, log = data[TRANSFER_HEADER.size :], self.ledger.log
        if length != len(content) or content != log[start : start + length]:
            self._found.append(f"the master sends {length} bytes from {start}, which are not those of its log")
        end = start + length
        if length and self.options.sync_flush and synced_to(self.disks["master"], SEGMENT, log[:end]) < end:
            self._found.append(f"the master sends {length} bytes from {start} that are not synced")
        if self.corrupts and length > 200:
            self.corrupts = False
            return self._corrupted(data, start)
        return data

    def _corrupted(self, data: bytes, start: int) -> bytes:
        """Changes a byte of a body, which its checksum protects, unless a slave may compare this byte."""
        log, header = self.ledger.log, TRANSFER_HEADER.size
        lowest = max((slave.log.end_offset for slave in self.slaves.values()), default=0)
        for end in sorted(self.ledger.ends):
            at = end + _BODY_AT
            is_inside = max(start, lowest) <= end and at < start + len(data) - header
            if is_inside and BLANK.unpack(log[end : end + BLANK.size])[1] in (MAGIC_V1, MAGIC_V2):
                at += header - start
                self._flips += 1  # the same damage twice would be the master's
                return data[:at] + bytes((data[at] ^ (self._flips % 255 + 1),)) + data[at + 1 :]
        return data

    def _check_reports(self, name: str, data: bytes) -> None:
        slave, disk = self.slaves[name], self.disks[name]
        for value in decode_reports(data):
            if value <= 1:  # a new slave asks; no record ends there
                continue
            log = log_bytes(slave.store, 0, slave.log.end_offset)
            if value > len(log) or synced_to(disk, SEGMENT, log[:value]) < value:
                self._found.append(f"{name} reports {value}, and has the log up to {len(log)}, some of it not synced")
            self.ledger.reported[name] = max(self.ledger.reported.get(name, 0), value)

    def _answered(self, number: int, code: int) -> None:
        ledger, send = self.ledger, self.ledger.sends.get(number)
        if send is None or not send.is_waiting or send.code is not None or code not in CODES:
            self._found.append(f"send {number} is answered with {code}: {send}")
            return
        send.code = code
        if code != OK:
            return
        wanted = ledger.log[: send.end]
        if self.options.sync_flush and synced_to(self.disks["master"], SEGMENT, wanted) < send.end:
            self._found.append(f"send {number} is acknowledged, and not synced up to {send.end}")
        ledger.acked_end = max(ledger.acked_end, send.end if self.options.sync_flush else 0)
        if self.options.replicas > 1:
            copies = sum(synced_to(self.disks[name], SEGMENT, wanted) >= send.end for name in self.names)
            if copies < self.options.replicas - 1:
                self._found.append(f"send {number} up to {send.end} is acknowledged, and {copies} slaves have it")
            ledger.copied_end = max(ledger.copied_end, send.end)

    # -- rest ----------------------------------------------------------------------------------------------------------

    def come_to_rest(self, limit_ms: int, connections: int) -> None:
        """Without further faults, everything that was asked for is done; then a message is acknowledged.

        Args:
            limit_ms: time in which it must be.
            connections: number of connections that each slave may need.

        Raises:
            Broken: it is not.
        """
        self.end_liars()
        opened = self.network.opened.copy()
        self._wait(limit_ms)
        forked = {name for name in self.slaves if self.is_forked(name)}
        needed = self.network.opened - opened
        if any(count > connections for name, count in needed.items() if name not in forked):
            raise Broken(f"so many connections were needed: {needed}")
        self._check_equal(forked)
        if not forked:
            self.put()
            self._wait(limit_ms)
            if self.ledger.sends[self._sent].code != OK:
                raise Broken(f"at rest, a message is answered with {self.ledger.sends[self._sent].code}")

    def stay_in_trouble(self) -> None:
        """Lets time pass while disks are full or have failed.

        Raises:
            Broken: the master counts on slaves that do not copy, a slave does not say that it does not, or a sender is
                not told.
        """
        for second in range(_TROUBLE_S):
            self.advance(1000)
            self._settle()
            silent = [name for name, slave in self.slaves.items() if not slave.trouble and not self._is_copied(slave)]
            if not silent and second >= _CALM_S:
                break
        if silent:
            raise Broken(f"{silent} do not copy, and do not say so")
        for slave in self.slaves.values():
            failed = slave.store.state in (StoreState.IO_ERROR, StoreState.DISK_FULL)
            if (failed and not slave.trouble) or (slave.trouble and slave.link is not None):
                raise Broken(f"{slave.name} is {slave.store.state}, connected: {slave.link}, and says: {slave.trouble}")
            if slave.store.state is StoreState.IO_ERROR and "restart" not in slave.trouble:
                raise Broken(f"{slave.name} does not say that it needs a restart: {slave.trouble}")
        master = self.master
        if master is None:
            return
        linked = sum(slave.link is not None for slave in self.slaves.values())
        if master.replication.in_sync_count > 1 + linked:
            raise Broken(f"{master.replication.in_sync_count} brokers are in sync, and {linked} slaves are connected")
        if linked < master.replication.needed:
            self.put()
            self._settle()
            send = self.ledger.sends[self._sent]
            wanted = ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT
            if send.end >= 0 and send.code not in wanted:
                raise Broken(f"{linked} slaves are connected, and a message is answered with {send.code}")

    def _is_copied(self, slave: SlaveProcess) -> bool:
        """Whether a slave has all that its master gives, or is told by nobody what it lacks."""
        master = self.master
        return master is None or slave.refused is not None or slave.log.end_offset >= master.store.confirm_offset

    def stay_at_rest(self) -> None:
        """While nothing is sent, connections stay.

        Raises:
            Broken: they do not.
        """
        opened = self.network.opened.copy()
        for _ in range(_CALM_S):
            self.advance(1000)
            self._settle()
        again = {name: count for name, count in (self.network.opened - opened).items() if not self.is_forked(name)}
        if again:
            raise Broken(f"connections are lost while nothing happens: {again}")

    def _wait(self, limit_ms: int) -> None:
        """Lets time pass until nothing is left to do."""
        begun_ms, opened = self.clock.monotonic() * 1000, self.network.opened.copy()
        while True:
            self._settle()
            passed_ms = self.clock.monotonic() * 1000 - begun_ms
            lacks = self._unrest(self.network.opened - opened)
            if not lacks:
                return
            if passed_ms > limit_ms:
                raise Broken(f"after {passed_ms:.0f} ms: {lacks}")
            left_ms = (min(process.loop.next_s for process in self.processes()) - self.clock.monotonic()) * 1000
            self.advance(max(1, min(int(left_ms) + 1, 1000)) if left_ms < inf else 1000)

    def _settle(self) -> None:
        """Does all that can be done without time."""
        for _ in range(_TURNS_MAX):
            self.turn()
            moved = False
            for direction in [each for each in self.network.directions() if each.can_deliver]:
                direction.deliver(1 << 20)
                moved = True
            for process in self.processes():
                for worker in process.workers()[:2]:
                    if worker.wanted and worker.ready:
                        self._run(process, worker)
                        moved = True
            if not moved and not any(process.loop.is_due for process in self.processes()):
                break
        for process in self.processes():
            # Where there was no space, the threads try again from time to time.
            for worker in process.workers() if process.store.state is StoreState.DISK_FULL else process.workers()[1:2]:
                self._run(process, worker)

    def _unrest(self, opened: Counter[str]) -> str:
        """Returns what is not at rest; empty if all is."""
        master = self.master
        assert master is not None
        end = master.store.max_offset
        if any(send.is_waiting and send.code is None for send in self.ledger.sends.values()):
            return "senders wait"
        if master.store.dispatch_behind_bytes:
            return "the master does not dispatch"
        if master.store.state is not StoreState.RUNNING:
            return f"the master is {master.store.state}"
        forked, held = 0, sorted(channel.link.acknowledged for channel in master.server.slaves)
        for name, slave in self.slaves.items():
            if self.is_forked(name):
                forked += 1
                if slave.refused is None and opened[name] < 2:
                    return f"{name} is neither refused nor sent away"
            elif slave.refused is not None:
                raise Broken(f"{name} is refused without a reason: {slave.refused}")
            elif slave.log.end_offset != end or slave.store.dispatch_behind_bytes:
                return f"{name} has the log up to {slave.log.end_offset} of {end}"
            elif slave.link is None or slave.link.state is not SlaveState.COPYING:
                return f"{name} does not copy"
        if held.count(end) < len(self.slaves) - forked:
            return f"the master knows of {held}, its log ends at {end}"
        return ""

    def is_forked(self, name: str) -> bool:
        """Whether a slave that runs has what its master has lost."""
        is_forked = self.ledger.is_forked(self._log_of(self.slaves[name]))
        if is_forked and self.options.sync_flush:
            raise Broken(f"{name} has what its master has not")
        return is_forked

    def runs(self, name: str) -> bool:
        """Whether a process runs."""
        return self._process(name) is not None

    @staticmethod
    def _log_of(slave: SlaveProcess) -> bytes:
        return log_bytes(slave.store, 0, slave.log.end_offset)

    def _check_equal(self, forked: set[str]) -> None:
        """Compares the logs and queues of all."""
        ledger, queues = self.ledger, queue_files(self.disks["master"])
        units = sum(-(-len(content) // 20) for content in queues.values())
        if units != ledger.messages:
            raise Broken(f"the master's queues have {units} messages, its log {ledger.messages}")
        for name, slave in self.slaves.items():
            if name in forked:
                continue
            if self._log_of(slave) != ledger.log:
                raise Broken(f"the logs of {name} and its master differ")
            if queue_files(self.disks[name]) != queues:
                raise Broken(f"the queues of {name} and its master differ")


def held_directions(pair: Pair) -> list[Direction]:
    """The directions that deliver nothing."""
    return [direction for direction in pair.network.directions() if direction.is_held]
