"""The files of these tests are on a disk."""

from tests.places import tmp_path

__all__ = ["tmp_path"]
