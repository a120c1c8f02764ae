"""Hostile store directories: whatever lies in a store, no command and no start touches anything outside of it.

    python -m tests.attack.directories --cases 2000
    python -m tests.attack.directories --seed 217 --cases 1

Each seed gives one case: a sound store of Rucola or RocketMQ, a path that tools or a start touch, what is put there,
and a command. The command runs as a user without privileges, to whom both the store and the tree beside it belong, so
that only the code keeps it from writing there. The rules:

* it ends within 20 s: it does its work, or refuses with one line that names a path, and never with a traceback;
* the tree beside the store is as before: names, bytes, modes, times of change;
* nothing new appears outside the store and the directories that the command was given.

A campaign writes the last seed to ``--state`` and continues there. The exit code is 1 at the first violation.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import faulthandler
import hashlib
import importlib
import os
import pkgutil
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random

from tests.golden.loader import load
from tests.golden.opening import CASES

import rucola
from rucola.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.cli.exit_codes import ExitCode
from rucola.cli.main import main as command_line
from rucola.common.java import parse_properties
from rucola.common.message import StoreMessage
from rucola.common.options import options_of, parse_options
from rucola.errors import RucolaError
from rucola.runtime import extras
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor.repair import repair
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

LIMIT_S = 20
NOBODY = 65534
MEMORY_BYTES = 3 << 30
SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
MADE_PLACES = (
    *("checkpoint", "rucola-watermark", "rucola-deleted-topics", "lock", "abort", "config", "commitlog", "index"),
    *("consumequeue", "batchconsumequeue", "consumequeue_ext", "timerlog", "timerwheel", "quarantine", "repair"),
    *("rebuild", "rebuild/job.json", "rebuild/new", "rebuild/old", "rebuild/scan-0.local", "rebuild/scan-0.local.json"),
    *("rebuild/queues.work", "deleted-queues", "deleted-queues/0", "quarantine/gaps.json", "repair/0001.journal"),
    *(
        "repair/0001.files",
        "commitlog/rucola-rebuild",
        "commitlog/rucola-rebuild.tmp",
        "commitlog-00000000000000000000",
    ),
    *("commitlog/.rucola", "config/topics.json", "config/topics.json.bak", "config/topics.json.tmp", "checkpoint.tmp"),
    *("rucola-watermark.tmp", "rucola-deleted-topics.tmp", "config/consumerOffset.json", "config/delayOffset.json"),
    *(
        "config/timercheck",
        "config/subscriptionGroup.json",
        "consumequeue/T0",
        "consumequeue/T0/0",
        "consumequeue/LINK",
    ),
    *("consumequeue/T9/0", "consumequeue/T0/0/00000000000000000000", "consumequeue/T0/0/00000000000000002000"),
    *("consumequeue/T0/0-00000000000000002000.tmp", "commitlog/00000000000000000000", "commitlog/00000000000000065536"),
    *("commitlog/.nfs0001", "commitlog/00000000000000000000~", "consumequeue/T0/0/.nfs0001", "index/.nfs0001"),
    *("commitlog-00000000000000065536.tmp", "index-20260101000000000.tmp", "index/20260101000000000", "lost+found"),
    *("orjson.py", "multiprocessing.py", "conf/plain_acl.yml", "compaction", "rocksdbstore"),
)
"""Paths that tools or a start read, write, list or remove, besides those of the files that a store has."""
QUERY = "select topic, count(*) from messages group by topic"
TRACES = ("Traceback", "\n\tat ", "Exception in task")
"""What shows that an error was not turned into a line: stacks of Python and Java."""
BESIDE = ("salvaged", "salvaged.salvage")
"""What ``salvage`` may make beside the store."""


class Violation(AssertionError):  # noqa: N818 - what it says
    """A command broke one of the rules."""


def _link_to(target: str) -> Callable[[Path, Path], None]:
    return lambda place, guarded: place.symlink_to(guarded / target)


def _socket(place: Path, _guarded: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # the name of a socket has at most 108 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place.name)
    os.chdir(here)


def _sparse(place: Path, _guarded: Path) -> None:
    place.write_bytes(b"")
    os.truncate(place, 8 << 30)


def _full_directory(place: Path, _guarded: Path) -> None:
    place.mkdir()
    (place / "letter").write_bytes(b"whose?")


def _other_owner(place: Path, _guarded: Path) -> None:
    place.write_bytes(b"{}")
    os.chown(place, 1, 1)
    place.chmod(0o600)


def _mode(mode: int) -> Callable[[Path, Path], None]:
    def make(place: Path, _guarded: Path) -> None:
        place.write_bytes(b"{}")
        place.chmod(mode)

    return make


CHANGES: dict[str, Callable[[Path, Path], None]] = {
    "link to a file outside": _link_to("precious"),
    "link to a directory outside": _link_to("queue"),
    "link to a tree outside": _link_to(""),
    "link to nothing": _link_to("nothing"),
    "link to itself": lambda place, _: place.symlink_to(place.name),
    "link to the parent": lambda place, _: place.symlink_to(".."),
    "FIFO": lambda place, _: os.mkfifo(place),
    "socket": _socket,
    "device": lambda place, _: os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
    "empty": lambda place, _: place.write_bytes(b""),
    "zeros": lambda place, _: place.write_bytes(bytes(4096)),
    "noise": lambda place, _: place.write_bytes(Random(1).randbytes(3000)),
    "sparse": _sparse,
    "directory": lambda place, _: place.mkdir(),
    "full directory": _full_directory,
    "file": lambda place, _: place.write_bytes(b"[]"),
    "mode 000": _mode(0),
    "mode 666": _mode(0o666),
    "another owner": _other_owner,
}
PRIVILEGED = ("device", "another owner")


def _start(root: str) -> int:
    """Starts a broker twice, with a clean stop after each start."""
    values = parse_properties(Path(root, "..", "broker.conf").read_text())
    known = {entry.key for entry in options_of(MessageStoreConfig)}
    settings = {key: value for key, value in values.items() if key in known} | {"storePathRootDir": root}

    async def life() -> None:
        broker = Broker(BrokerConfig(listen_port=0), parse_options(MessageStoreConfig, settings))
        await broker.start()
        try:
            broker.store.put_message(StoreMessage(b"T0", 0, b"body", b"KEYS\x01k\x02", 1, bytes(8)))
            broker.store.dispatch()
        finally:
            await broker.shutdown()

    try:
        for _ in range(2):
            asyncio.run(life())
    except RucolaError as error:
        print(f"rucola: {error}", file=sys.stderr)
        return 5
    return 0


def _tool(*arguments: str) -> Callable[[str], int]:
    return lambda root: command_line([one.replace("ROOT", root) for one in arguments])


COMMANDS: dict[str, Callable[[str], int]] = {
    "info": _tool("store", "info", "ROOT"),
    "ls": _tool("store", "ls", "ROOT"),
    "cat": _tool("store", "cat", "ROOT", "--topic", "T0"),
    "grep": _tool("store", "grep", "ROOT", "--key", "k1"),
    "grep the log": _tool("store", "grep", "ROOT", "--key", "k1", "--no-index"),
    "find": _tool("store", "find", "ROOT", "--topic", "T0"),
    "stats": _tool("store", "stats", "ROOT", "--jobs", "1"),
    "hexdump": _tool("store", "hexdump", "checkpoint", "ROOT"),
    "hexdump of a record": _tool("store", "hexdump", "record", "ROOT", "0"),
    "hexdump of a unit": _tool("store", "hexdump", "queue", "ROOT", "T0/0/0"),
    "verify": _tool("store", "verify", "ROOT"),
    "rebuild": _tool("store", "rebuild", "ROOT", "--jobs", "1"),
    "rebuild --dry-run": _tool("store", "rebuild", "ROOT", "--dry-run"),
    "repair": _tool("store", "repair", "ROOT", "--jobs", "1"),
    "repair --undo": _tool("store", "repair", "ROOT", "--undo"),
    "salvage": _tool("store", "salvage", "ROOT", "-o", "ROOT/../salvaged", "--jobs", "1"),
    "sql": _tool("sql", "--store", "ROOT", QUERY),
    "start": _start,
}
WEIGHTS = {"start": 5, "rebuild": 4, "repair": 3, "repair --undo": 2, "salvage": 2, "verify": 2}


@dataclass(frozen=True)
class Case:
    """One case: which store, what is put at which path, and the command."""

    seed: int
    store: str
    place: str
    change: str
    command: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.command} on {self.store}, {self.place}: {self.change}"


@cache
def own_store() -> dict[str, bytes]:
    """A store of ours with several segments, queues, an index, tables, and a repair that can be undone."""
    with tempfile.TemporaryDirectory() as directory:
        options = {"storePathRootDir": directory, **SMALL}
        store = MessageStore(parse_options(MessageStoreConfig, options), Files(), ManualClock(step_ms=1))
        store.load()
        store.start()
        for number in range(400):
            keys = b"KEYS\x01k%d\x02" % number
            store.put_message(StoreMessage(b"T%d" % (number % 2), number % 3, b"body" * 20, keys, 1, bytes(8)))
        store.dispatch()
        store.shutdown()
        root = Path(directory)
        (root / "config").mkdir(exist_ok=True)
        (root / "config/topics.json").write_bytes(b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{}}')
        queue = root / "consumequeue/T0/0" / f"{0:020d}"
        queue.write_bytes(bytes(40) + queue.read_bytes()[40:])
        if repair(directory, options=SMALL).left:
            raise AssertionError("the store was not repaired")
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@cache
def store_of(name: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Returns the files of a sound store and its options."""
    if name == "ours":
        return own_store(), dict(SMALL)
    case = load(name)
    return dict(case.files), {key: str(value) for key, value in case.case["config"].items()}


def case_of(seed: int) -> Case:
    """Returns the case that belongs to a seed."""
    random = Random(seed)
    sound = [name for name in CASES if name.startswith("clean_stop")]
    name = "ours" if random.random() < 0.6 else random.choice(sound)
    files = store_of(name)[0]
    place = random.choice(MADE_PLACES if random.random() < 0.6 else sorted(files))
    changes = [name for name in CHANGES if os.geteuid() == 0 or name not in PRIVILEGED]
    commands = [name for name in COMMANDS for _ in range(WEIGHTS.get(name, 1))]
    return Case(seed, name, place, random.choice(changes), random.choice(commands))


def guarded_tree(at: Path) -> None:
    """Makes the tree that no command may touch. It looks like parts of a store, so that code which follows a link finds
    something to work on.
    """
    (at / "queue/sub/0").mkdir(parents=True)
    for name in ("precious", "queue/sub/letter", "queue/sub/0/photo", "job.json", "topics.json"):
        (at / name).write_bytes(b"not rucola's")
    for name in (f"queue/{0:020d}", f"{0:020d}", f"{65536:020d}"):
        (at / name).write_bytes(bytes(2000))
    (at / "queue/.hidden").symlink_to("sub")


def look(at: Path) -> dict[str, tuple[object, ...]]:
    """Returns everything about a tree that a command could change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (at, *sorted(at.rglob("*"))):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        target = str(path.readlink()) if path.is_symlink() else ""
        what = status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, status.st_ctime_ns, content, target
        found[str(path.relative_to(at))] = what
    return found


def prepare(case: Case, base: Path) -> None:
    """Writes the store of the case, and the tree beside it."""
    files, options = store_of(case.store)
    root, guarded = base / "store", base / "guarded"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    guarded_tree(guarded)
    (base / "cwd").mkdir()
    (base / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in options.items()))
    place = root / case.place
    with suppress(FileExistsError, NotADirectoryError):
        place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if os.geteuid() == 0:
        for path in (base, *base.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    CHANGES[case.change](place, guarded)
    if os.geteuid() == 0 and case.change != "another owner":
        os.chown(place, NOBODY, NOBODY, follow_symlinks=False)


def run_in_child(case: Case, base: Path, output: Path) -> int | None:
    """Runs the command of the case in a forked process without privileges; returns its exit code, None if it hung."""
    temporary = open_to_all()
    child = os.fork()
    if not child:
        code = 99
        try:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(descriptor, number)
            faulthandler.register(signal.SIGUSR1, descriptor)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            os.chdir(base / "cwd")
            tempfile.tempdir = temporary
            limit = _address_space() + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            code = COMMANDS[case.command](str(base / "store"))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - the child ends here
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGUSR1)  # it says where it hangs
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _address_space() -> int:
    """Bytes of address space of this process: as much as earlier tests have left it."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@cache
def warm_up() -> None:
    """Imports what the commands import: the user without privileges may not be able to read the interpreter's files."""
    looked_for = chain.from_iterable(names for _, names in (extras.SERVER, extras.CLI, extras.ARROW, extras.SQL))
    own = (module.name for module in pkgutil.walk_packages(rucola.__path__, "rucola."))
    here = (name for name in own if not name.startswith(("rucola.spark", "rucola.lab")) and "__main__" not in name)
    for name in ("html", "unicodedata", *looked_for, *here):
        importlib.import_module(name)
    for encoding in ("utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le"):  # JSON may be in them
        codecs.lookup(encoding)
    with tempfile.TemporaryDirectory() as directory, open(os.devnull, "w") as nowhere:  # noqa: PTH123
        prepare(Case(0, "ours", "nothing", "directory", "info"), Path(directory))
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            for name, command in COMMANDS.items():
                if name != "sql":  # DuckDB starts threads, and a child would not have them
                    command(f"{directory}/store")
        for name in _modules_of_sql(f"{directory}/store"):
            with suppress(ImportError):  # some names stand for parts of modules
                importlib.import_module(name)


def _modules_of_sql(root: str) -> list[str]:
    """The modules that ``rucola sql`` imports, told by a process of its own."""
    program = "import sys; from rucola.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", program, "sql", "--store", root, QUERY]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [name for name in said.splitlines()[-1].split() if name != "__main__"]


def open_to_all() -> str:
    """Returns a directory for temporary files that a user without privileges can reach."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        path = Path(place)
        if path.is_dir() and all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.resolve().parents)):
            return place
    raise AssertionError("there is no directory for temporary files that every user can reach")


def check(case: Case) -> str:
    """Runs a case; returns ``done`` or ``refused``.

    Raises:
        Violation: a rule was broken.
    """
    warm_up()
    with (
        tempfile.TemporaryDirectory(prefix="directories-", dir=open_to_all()) as directory,
        tempfile.TemporaryDirectory() as said,
    ):
        base, output = Path(directory), Path(said, "output")
        base.chmod(0o755)
        prepare(case, base)
        before = Before(base)
        code = run_in_child(case, base, output)
        return before.judge(case, BESIDE, code, output.read_text(errors="replace"))


class Before:
    """What is beside the store of a case before its command runs."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._guarded = look(base / "guarded")
        self._names = _names(base)

    def judge(self, case: Case, beside: Collection[str], code: int | None, text: str) -> str:
        """Returns ``done`` or ``refused``.

        Args:
            beside: names that the command may make beside the store.
            code: exit code of the command; None if it hung.
            text: what it said.

        Raises:
            Violation: a rule was broken.
        """
        base = self._base
        if (after := look(base / "guarded")) != self._guarded:
            changed = sorted(name for name in self._guarded | after if self._guarded.get(name) != after.get(name))
            raise Violation(f"{case}: changed outside of the store: {changed} (exit {code}, {text[-300:]})")
        if new := _names(base) - self._names - set(beside):
            raise Violation(f"{case}: made {sorted(new)} beside the store")
        if made := sorted(path.name for path in (base / "cwd").iterdir()):
            raise Violation(f"{case}: made {made} in the current directory")
        if code is None:
            raise Violation(f"{case}: hangs: {text[-3000:]}")
        if code not in range(7) or any(word in text for word in TRACES):
            raise Violation(f"{case}: exit {code}: {text[-1500:]}")
        if code > ExitCode.USAGE and case.place.rpartition("/")[2] not in text and str(base) not in text:
            raise Violation(f"{case}: exit {code} without a name: {text[-300:]}")
        _make_removable(base)
        return "refused" if code > ExitCode.FAILED else "done"


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def _make_removable(base: Path) -> None:
    for path in base.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def campaign_options(description: str | None, cases: int) -> argparse.ArgumentParser:
    """The options of a campaign with ``cases`` cases unless told otherwise."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--state", type=Path, help="file with the next seed, from which a campaign continues")
    parser.add_argument("--keep-going", action="store_true", help="print violations and go on")
    return parser


def run_campaign(options: argparse.Namespace, check_seed: Callable[[int], str]) -> int:
    """Checks seed after seed, and prints the counts of the verdicts; returns the exit code."""
    first, verdicts = options.seed, Counter[str]()
    if options.state is not None and options.state.exists():
        first = int(options.state.read_text())
    for seed in range(first, options.seed + options.cases):
        try:
            verdicts[check_seed(seed)] += 1
        except Violation as error:
            print(error, flush=True)
            verdicts["violated"] += 1
            if not options.keep_going:
                return 1
        if options.state is not None:
            options.state.write_text(str(seed + 1))
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    return int(bool(verdicts["violated"]))


def main() -> int:
    options = campaign_options(__doc__, cases=2000).parse_args()
    return run_campaign(options, lambda seed: check(case_of(seed)))


if __name__ == "__main__":
    sys.exit(main())
