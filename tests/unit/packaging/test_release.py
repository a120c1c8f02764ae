"""The release check names every fault of a wheel."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.release_check import check_wheel

from rucola import __version__

ROOT = Path(__file__).parents[3]
Content = dict[str, bytes]


def _content() -> Content:
    """Returns the content of a correct pure Python wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {__version__}",
        f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {project['license']}",
        "Description-Content-Type: text/markdown",
        *(f"Provides-Extra: {extra}" for extra in project["optional-dependencies"]),
    ]
    modules = {str(path.relative_to(ROOT / "src")): b"" for path in (ROOT / "src" / "rucola").rglob("*.py")}
    info = f"rucola_mq-{__version__}.dist-info"
    return modules | {
        "rucola/py.typed": b"",
        f"{info}/METADATA": "\n".join(metadata).encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }


def _faults(directory: Path, content: Content, tag: str = "py3-none-any") -> list[str]:
    wheel = directory / f"rucola_mq-0.1.0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return list(check_wheel(wheel))


def test_a_good_wheel_has_no_faults(tmp_path: Path) -> None:
    assert _faults(tmp_path, _content()) == []


def _edit(content: Content, name: str, old: bytes, new: bytes) -> None:
    (path,) = [path for path in content if path.endswith(name)]
    content[path] = content[path].replace(old, new)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda content: content.pop(next(n for n in content if n.endswith("LICENSE"))), "LICENSE is missing"),
        (lambda content: content.pop("rucola/errors.py"), r"modules that differ from the source: \['rucola/errors"),
        (lambda content: content.pop("rucola/py.typed"), "py.typed is missing"),
        (lambda content: content.update({"tests/test_x.py": b""}), r"do not belong there: \['tests/test_x.py'\]"),
        (lambda content: content.update({"rucola/big.bin": bytes(3_000_000)}), "3.[0-9] MB, at most 2.5"),
        (lambda content: _edit(content, "METADATA", b"Version: 0", b"Version: 9"), "metadata says"),
        (lambda content: _edit(content, "METADATA", b"Provides-Extra: spark\n", b""), "extras"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, spoil: Callable[[Content], object], fault: str) -> None:
    content = _content()
    spoil(content)
    with pytest.raises(AssertionError, match=fault):
        assert _faults(tmp_path, content) == []


def test_a_compiled_wheel_has_its_kernels_and_the_name_of_its_linux(tmp_path: Path) -> None:
    faults = _faults(tmp_path, _content(), "cp311-cp311-linux_x86_64")
    assert len(faults) == 2
    assert faults[0].startswith("compiled kernels: [], not ['rucola/arrow/_json_cy', 'rucola/filter/sql/_sql_cy'")
    assert faults[1] == "no manylinux tag, so auditwheel has not repaired it"
