"""Runs tests, unless this very tree has passed them: ``python tools/run_tests.py [--name NAME] [--again] COMMAND...``.

A tree is its files but for what ``.gitignore`` names, the interpreter and the installed packages. What passed stands in
``.venv/.passed-NAME``. ``make check`` runs the tests, so ``make test`` after it has nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Returns the exit code of the tests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--name", default="test", help="target of make: which of the tests the command runs (test)")
    parser.add_argument("--again", action="store_true", help="also if the tree has passed")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    passed = root / f".venv/.passed-{options.name}"
    before = digest_of(root)
    known = passed.read_text().splitlines() if passed.exists() else []
    if known[:1] == [before] and not options.again:
        print(f"make {options.name}: this tree passed at {known[1]}; again: make {options.name} AGAIN=1")
        return 0
    code = subprocess.run(options.command, cwd=root, check=False).returncode
    # With options from outside it may have been a part of the tests; a file changed meanwhile was not tested.
    if code == 0 and not os.environ.get("PYTEST_ADDOPTS") and digest_of(root) == before:
        passed.write_text(f"{before}\n{time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    return code


def digest_of(root: Path) -> str:
    """A digest of all that decides about the result of the tests."""
    found = hashlib.sha256(sys.version.encode())
    for package in sorted(f"{one.name} {one.version}" for one in distributions()):
        found.update(f"{package}\n".encode())
    for path in sorted(files_of(root)):
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        found.update(f"{path.relative_to(root)} {path.lstat().st_mode & 0o111} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def files_of(root: Path) -> Iterator[Path]:
    """The files of a tree, without what ``.gitignore`` names."""
    ignored = [".git", *(root / ".gitignore").read_text().split()]
    for directory, folders, names in os.walk(root):
        here = Path(directory).relative_to(root)
        folders[:] = [name for name in folders if not _is_ignored(here / name, ignored)]
        yield from (Path(directory, name) for name in names if not _is_ignored(here / name, ignored))


def _is_ignored(path: Path, patterns: list[str]) -> bool:
    """Whether a pattern names the path; one with a slash before its end stands for a place below the root."""
    return any(
        fnmatch(str(path) if "/" in pattern.rstrip("/") else path.name, pattern.strip("/")) for pattern in patterns
    )


if __name__ == "__main__":
    sys.exit(main())
