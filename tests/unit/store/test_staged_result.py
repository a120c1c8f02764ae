"""Results of tasks: what counts as whole."""

from __future__ import annotations

from pathlib import Path

from rucola.runtime.files import Files
from rucola.store.doctor.staged_result import is_whole, read_result, write_result


def test_no_bit_of_a_result_may_change(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "scan-0.local.json"
    (tmp_path / "scan-0.local.units").write_bytes(b"units")
    (tmp_path / "scan-0.local").mkdir()
    (tmp_path / "scan-0.local/file").write_bytes(b"")
    (tmp_path / "scan-0.other.units").write_bytes(b"of another attempt")
    write_result(files, str(tmp_path), "scan-0.local", {"records": 123, "units": "scan-0.local.units"})
    found = read_result(files, str(path))
    assert found is not None
    assert found[0] == {"records": 123, "units": "scan-0.local.units"}
    assert sorted(found[1]) == ["scan-0.local.units", "scan-0.local/file"]
    assert is_whole(files, str(tmp_path), path.name)
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        again = read_result(files, str(path))
        assert again is None or again == found
    path.write_bytes(content)
    (tmp_path / "scan-0.local/file").write_bytes(b"1")
    assert not is_whole(files, str(tmp_path), path.name)
