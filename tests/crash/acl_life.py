"""Administrators change access rights while the power or the disk fails. The next start must apply either the rights
from before the change or those from after it; it must never lock out all users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from random import Random
from typing import Any, Protocol

from rucola.broker.acl.auth_manager import AuthManager
from rucola.broker.acl.plain_manager import PlainPermissionManager
from rucola.errors import BrokerError
from rucola.runtime.files import Files
from rucola.testing.clock import ManualClock
from rucola.testing.crash_states import crash_states
from rucola.testing.fault_plan import FaultPlan, Killed
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, empty_disk

Rights = frozenset[tuple[str, str]]
"""The accounts, each with all its rights."""
_FIRST_ACCOUNTS = """\
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: administrator, secretKey: a secret of the administrator, admin: true}
- {accessKey: producer, secretKey: a secret of the producer, topicPerms: [T=PUB]}
"""
_MORE_ACCOUNTS = """\
accounts:
- {accessKey: consumer, secretKey: a secret of the consumer, topicPerms: [T=SUB], groupPerms: [g=SUB]}
"""
_FIRST_USER = '{"username": "root", "password": "a password of the root user"}'


class Holey(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if the rights after a start are neither the old nor the new ones."""


class Administration(Protocol):
    """The interface by which the test changes and reads one kind of access control: accounts or users."""

    def prepare(self, files: Files) -> None:
        """Creates the files that exist at the start."""

    def load(self, files: Files) -> None:
        """Starts a process, which reads the files."""

    def changes(self) -> Iterator[Callable[[], None]]:
        """Returns the changes that administrators request, in order."""

    def look(self) -> None:
        """Reloads the files if this kind of access control reloads them in a running broker."""

    def rights(self) -> Rights:
        """Returns the rights that the process grants."""


class PlainAccounts:
    """Access control by accounts in ``plain_acl.yml`` and in a second file."""

    manager: PlainPermissionManager

    def prepare(self, files: Files) -> None:
        """See ``Administration``."""
        for name, text in (("plain_acl.yml", _FIRST_ACCOUNTS), ("acl/more.yml", _MORE_ACCOUNTS)):
            path = f"{ROOT}/conf/{name}"
            files.make_directory(path.rpartition("/")[0])
            files.replace_file(path, text.encode())

    def load(self, files: Files) -> None:
        """See ``Administration``."""
        self.manager = PlainPermissionManager(files, ROOT, False, ManualClock().wall_ms)
        self.manager.load()

    def changes(self) -> Iterator[Callable[[], None]]:
        """See ``Administration``."""
        manager = self.manager
        new = {"accessKey": "newcomer", "secretKey": "a secret of the newcomer", "topicPerms": ["T=DENY", "U=PUB"]}
        long = "a_topic_that_makes_the_file_longer_than_a_page_" * 100
        yield lambda: manager.update_account(new)
        yield lambda: manager.update_account({"accessKey": "consumer", "secretKey": "another secret for it"})
        yield lambda: manager.set_global_addresses(["10.10.10.*"])
        yield lambda: manager.delete_account("producer")
        yield lambda: manager.update_account(new | {"topicPerms": ["T=PUB|SUB", f"{long}=PUB"]})
        yield lambda: manager.delete_account("newcomer")

    def look(self) -> None:
        """See ``Administration``."""
        for _ in range(2):
            self.manager.reload()

    def rights(self) -> Rights:
        """See ``Administration``."""
        snapshot = self.manager.snapshot
        texts = {name: _text(account) for name, account in snapshot.accounts.items()}
        return frozenset({**texts, "everybody from": repr(snapshot.global_addresses)}.items())


class Users:
    """Access control by users and rules of ACL 2.0."""

    manager: AuthManager

    def prepare(self, files: Files) -> None:
        """Does nothing, because the first start creates the first user; see ``Administration``."""

    def load(self, files: Files) -> None:
        """See ``Administration``."""
        self.manager = AuthManager(files, ROOT, True, False)
        self.manager.load(_FIRST_USER)

    def changes(self) -> Iterator[Callable[[], None]]:
        """See ``Administration``."""
        manager = self.manager
        entries = [{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}]
        rules: dict[str, Any] = {"policies": [{"policyType": "Custom", "entries": entries}]}
        yield lambda: manager.create_user({"username": "alice", "password": "a password of alice's"})
        yield lambda: manager.put_rules("User:alice", rules)
        yield lambda: manager.create_user({"username": "bob", "password": "a password of bob's", "userType": "Super"})
        yield lambda: manager.update_user("alice", {"password": "another password of alice's"})
        yield lambda: manager.update_user("bob", {"userStatus": "disable"})
        yield lambda: manager.delete_rules("User:alice", "", "Topic:T")
        yield lambda: manager.delete_user("alice")

    def look(self) -> None:
        """Does nothing: the file is never reloaded, because only the manager writes it; see ``Administration``."""

    def rights(self) -> Rights:
        """See ``Administration``."""
        return frozenset((name, _text(user)) for name, user in self.manager.snapshot.accounts.items())


KINDS: dict[str, type[PlainAccounts] | type[Users]] = {"accounts": PlainAccounts, "users": Users}


class AclExplorer:
    """Simulates a power failure at each step of the changes of one kind.

    Args:
        sample: number of random crash states at each step, in addition to the fixed ones.
        prepare: function that adds a defect to the ``Files`` of the process; used to test this explorer.

    Attributes:
        states: number of crash states from which a process was started.
    """

    def __init__(self, kind: str, seed: int, sample: int, prepare: Callable[[Files], None] | None = None) -> None:
        self.states = 0
        self._prepare = prepare
        self._kind = kind
        self._random = Random(seed)
        self._sample = sample
        self._rights = self._all_rights()

    def run(self) -> None:
        """Simulates a power failure before each call to the disk.

        Raises:
            Holey: a start granted wrong rights.
        """
        states = self._rights
        disk, administration = self._started()
        for number, change in enumerate(administration.changes()):
            allowed = states[number : number + 2]
            disk.observer = lambda kind, path, allowed=allowed: self._cut(disk, f"{kind} {path}", allowed)
            change()
            disk.observer = None
            self._cut(disk, "after the answer", states[number + 1 : number + 2])

    def run_with_faults(self, plan: FaultPlan) -> bool:
        """Lets the disk fail, or kills the process; then an administrator continues. Returns whether the fault
        happened.

        Raises:
            Holey: a start granted wrong rights.
        """
        disk, administration = self._started()
        before = administration.rights()
        disk.faults = plan
        with suppress(Killed):
            for change in administration.changes():
                before = administration.rights()
                try:
                    change()
                except BrokerError:
                    disk.faults = None
                    if administration.rights() != before:
                        raise Holey("a change that was refused is in use") from None
                    self._try_again(disk, administration, change)
                if plan.fired:
                    break
        disk.faults = None
        if plan.fired:
            number = self._rights.index(before)
            self._cut(disk, "after the fault", self._rights[number : number + 2])
        return plan.fired

    def _try_again(self, disk: SimulatedDisk, administration: Administration, change: Callable[[], None]) -> None:
        """Repeats a change that failed. First reads the files again, as a broker does at intervals, because the new
        file may have been renamed before the disk failed.
        """
        administration.look()
        try:
            change()
        except BrokerError:
            return  # the file is deleted, but a crash may undo that
        self._cut(disk, "after the answer to the second attempt", [administration.rights()])

    def _started(self) -> tuple[SimulatedDisk, Administration]:
        disk, administration = empty_disk(), KINDS[self._kind]()
        files = files_on(disk)
        files.make_directory(ROOT)
        administration.prepare(files)
        if self._prepare is not None:
            self._prepare(files)
        administration.load(files)
        return disk, administration

    def _all_rights(self) -> list[Rights]:
        """Returns the rights before the first change, and after each change."""
        _, administration = self._started()
        rights = [administration.rights()]
        for change in administration.changes():
            change()
            rights.append(administration.rights())
        return rights

    def _cut(self, disk: SimulatedDisk, step: str, allowed: list[Rights]) -> None:
        for state in crash_states(disk, self._random, self._sample, randoms=8):
            self.states += 1
            administration = KINDS[self._kind]()
            try:
                administration.load(files_on(SimulatedDisk.of(state.image)))
            except Exception as error:
                raise Holey(f"{step}, {state.choice}: nobody is let in: {error!r}") from error
            if administration.rights() not in allowed:
                names = sorted(name for name, _ in administration.rights())
                raise Holey(f"{step}, {state.choice}: the accounts let in are neither the old nor the new set: {names}")


def _text(account: Any) -> str:
    """Returns all data of an account or user as text, with the secret, which other code never sees."""
    return repr([getattr(account, each.name) for each in fields(account)])
