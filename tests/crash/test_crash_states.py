"""All states in which a crash may leave a small disk, each once."""

from __future__ import annotations

from random import Random

from rucola.testing.crash_states import NOTHING_LOST, all_states, crash_states
from rucola.testing.simulated_disk import Directory, Inode, SimulatedDisk


def uncertain_disk() -> SimulatedDisk:
    """Returns a disk with a page that has two versions since its last sync, and a file whose name is uncertain."""
    root, known = Directory(), Inode(b"a" * 10)
    disk = SimulatedDisk({"/": root, "/known": known}, {"/": root, "/known": known})
    disk.mapped.add(known)
    for content in (b"b", b"c"):
        known.data[:] = content * 10
        disk.capture()
    disk.change("create /new", {"/new": Inode()})
    return disk


def test_all_states_are_the_product_of_what_is_uncertain() -> None:
    states = list(all_states(uncertain_disk()))
    found = {(state.image["/known"], "/new" in state.image) for state in states}
    assert len(states) == 6
    assert found == {(content * 10, there) for content in (b"a", b"b", b"c") for there in (False, True)}


def test_states_say_what_was_kept() -> None:
    choices = {state.choice: state.image for state in all_states(uncertain_disk())}
    assert len(choices) == 6
    assert choices["all lost"] == {"/": None, "/known": b"a" * 10}
    assert choices[NOTHING_LOST] == {"/": None, "/known": b"c" * 10, "/new": b""}
    assert choices["kept: page 0 of /known (older version 1)"]["/known"] == b"b" * 10


def test_the_fixed_part_of_the_sample_is_among_them() -> None:
    disk = uncertain_disk()
    images = [state.image for state in all_states(disk)]
    assert all(state.image in images for state in crash_states(disk, Random(1), 0))


def test_a_certain_disk_has_one_state() -> None:
    root = Directory()
    [state] = all_states(SimulatedDisk({"/": root}, {"/": root}))
    assert state.choice == NOTHING_LOST and state.image == {"/": None}


def test_an_uncertain_name_does_not_come_back_after_a_later_certain_change_of_it() -> None:
    """Before the fix, a file in a renamed directory, synced under its new name, could come back under the old name."""
    root, old = Directory(), Inode(b"old")
    certain = {"/": root, "/from": Directory(), "/from/name": Directory()}
    disk = SimulatedDisk(dict(certain), dict(certain))
    disk.change("create", {"/from/temporary": old})
    disk.change("rename", {"/from/temporary": None, "/from/name/file": old})
    disk.change("rename", {"/from/name": None, "/from/name/file": None, "/to": certain["/from/name"], "/to/file": old})
    disk.sync_directory("/")
    disk.change("create directory", {"/from/name": Directory()})
    found = {frozenset(state.image) for state in all_states(disk)}
    assert not any("/from/name/file" in image for image in found)
    assert any("/from/temporary" in image for image in found), "the removal of this name is still uncertain"
