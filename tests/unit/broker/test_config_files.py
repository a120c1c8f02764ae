"""Tables in files: the old content stays as a backup, and a damaged file never counts as an empty table."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from rucola.broker.config_files import ConfigFiles
from rucola.errors import FormatError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.testing.crash_states import crash_states
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import empty_disk

NAME = "topics.json"


def read(files: Files, root: str) -> bytes | None:
    taken: list[bytes | None] = []

    def take(text: bytes | None) -> None:
        if text is not None and not text.startswith(b"{"):
            raise FormatError(NAME, 0, "JSON", "something else")
        taken.append(text)

    ConfigFiles(files, root).load(NAME, take)
    return taken[-1]


def test_the_content_before_stays_as_a_spare_copy(tmp_path: Path) -> None:
    files = Files()
    replace = ConfigFiles(files, str(tmp_path)).replacer(NAME)
    assert read(files, str(tmp_path)) is None
    for content in (b"{1}", b"{2}", b"{3}"):
        replace(content)
    assert (tmp_path / "config" / NAME).read_bytes() == b"{3}"
    assert (tmp_path / "config" / f"{NAME}.bak").read_bytes() == b"{2}"
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == [NAME, f"{NAME}.bak"]


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0"])
def test_an_empty_or_broken_table_without_a_copy_names_the_file_and_nothing_is_removed(
    tmp_path: Path, damaged: bytes
) -> None:
    path = tmp_path / "config" / NAME
    path.parent.mkdir()
    path.write_bytes(damaged)
    with pytest.raises(StoreDamagedError) as caught:
        read(Files(), str(tmp_path))
    assert caught.value.path == str(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0"])
def test_a_damaged_table_does_not_take_the_place_of_its_copy(tmp_path: Path, damaged: bytes) -> None:
    files = Files()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / NAME).write_bytes(damaged)
    spare = tmp_path / "config" / f"{NAME}.bak"
    spare.write_bytes(b"{old}")
    tables = ConfigFiles(files, str(tmp_path))

    def take(text: bytes | None) -> None:
        if text == damaged:
            raise FormatError(NAME, 0, "JSON", "something else")

    tables.load(NAME, take)
    tables.replacer(NAME)(b"{new}")
    assert spare.read_bytes() == b"{old}"
    tables.replacer(NAME)(b"{newer}")
    assert spare.read_bytes() == b"{new}"


def test_after_a_power_cut_at_any_step_there_is_the_old_table_or_the_new_one() -> None:
    disk = empty_disk()
    files = files_on(disk)
    random = Random(11)
    contents: list[bytes | None] = [None, *(b"{%d" % number * 3000 for number in range(4))]
    replace = ConfigFiles(files, "/store").replacer(NAME)
    done, states = 1, 0

    def check(kind: str, path: str) -> None:
        nonlocal states
        for state in crash_states(disk, random, 20):
            states += 1
            assert read(files_on(SimulatedDisk.of(state.image)), "/store") in contents[done - 1 : done + 1], (
                state.choice
            )

    files.make_directory("/store")
    for content in contents[1:]:
        assert content is not None
        disk.observer = check
        replace(content)
        disk.observer = None
        done += 1
        check("after", NAME)
    assert states > 300
