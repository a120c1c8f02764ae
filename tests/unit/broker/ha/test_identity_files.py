"""The id of a broker in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.broker.ha.identity_files import IdentityFiles
from rucola.broker.ha.replicas_manager import TemporaryIdentity
from rucola.errors import ConfigError, FormatError
from rucola.runtime.files import Files

TEMPORARY = TemporaryIdentity(7, "h:1;5")


def identity(path: Path, cluster: str = "c", broker: str = "b") -> IdentityFiles:
    return IdentityFiles(Files(), str(path / "brokerIdentity"), cluster, broker)


def test_id_outlives_the_broker_and_the_temporary_one_goes(tmp_path: Path) -> None:
    found = identity(tmp_path)
    assert (found.broker_id, found.temporary) == (None, None)
    found.apply(TEMPORARY)
    assert (tmp_path / "brokerIdentity-temp").read_bytes() == b"c#b#7#h:1;5"
    found = identity(tmp_path)
    assert (found.broker_id, found.temporary) == (None, TEMPORARY)
    found.keep(7)
    assert [each.name for each in tmp_path.iterdir()] == ["brokerIdentity"]
    assert (tmp_path / "brokerIdentity").read_bytes() == b"c#b#7"
    for each in (found, identity(tmp_path)):
        assert (each.broker_id, each.temporary) == (7, None)


def test_withdrawn_application_is_gone(tmp_path: Path) -> None:
    found = identity(tmp_path)
    found.apply(TEMPORARY)
    found.withdraw()
    found.withdraw()
    assert list(tmp_path.iterdir()) == []
    assert found.temporary is None


def test_kill_between_both_files_keeps_the_id(tmp_path: Path) -> None:
    found = identity(tmp_path)
    found.apply(TEMPORARY)
    left = (tmp_path / "brokerIdentity-temp").read_bytes()
    found.keep(7)
    (tmp_path / "brokerIdentity-temp").write_bytes(left)
    assert identity(tmp_path).broker_id == 7


@pytest.mark.parametrize(("names", "key"), [(("x", "b"), "brokerClusterName"), (("c", "x"), "brokerName")])
@pytest.mark.parametrize("is_kept", [True, False])
def test_broker_with_another_name_is_refused(tmp_path: Path, names: tuple[str, str], key: str, is_kept: bool) -> None:
    found = identity(tmp_path)
    found.apply(TEMPORARY)
    if is_kept:
        found.keep(7)
    with pytest.raises(ConfigError) as caught:
        identity(tmp_path, *names)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "content", [b"", b"c#b", b"#b#7", b"c#b#0", b"c#b#x", b"c#b#%d" % (1 << 63), b"c#b#%023d" % 1234, b"c#b#7#code"]
)
def test_file_that_cannot_be_read_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "brokerIdentity").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        identity(tmp_path)
    assert caught.value.source == str(tmp_path / "brokerIdentity")


def test_name_with_a_number_sign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        identity(tmp_path, broker="a#b")
