"""A table in an object store. Data files are written and read through PyArrow's file systems.

An object appears whole, or not at all. No step depends on a rename, or on the order of a listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from rucola.errors import DiskError, FormatError
from rucola.places.place import Found

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    import pyarrow.parquet as pq

    from rucola.places.storage_options import StorageOptions

_NO_BUCKET = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound")
_ANSWER = re.compile(r"<Code>(\w+)</Code>\s*<Message>([^<\n]*)</Message>")
"""What an object store answers, in the text of a library."""
_CAUSE = "\u21b3\x1b[0m"
"""delta-rs writes it before each cause of an error; the last one is what happened."""
FILE_BYTES_MAX = 256 << 20
"""Longest small file that is read as a whole, in bytes."""


class ObjectPlace:
    """``Place`` in an object store.

    Args:
        scheme: kind of the store: ``s3``, ``gs`` or ``abfss``.
        bucket: name of the bucket.
        path: path of the table in the bucket; may be empty.
        options: how the store is reached.
    """

    is_local = False

    def __init__(self, scheme: str, bucket: str, path: str, options: StorageOptions) -> None:
        self._base = f"{bucket}/{path}".rstrip("/")
        self.root = f"{scheme}://{self._base}"
        self._options = options
        self._arguments = (scheme, bucket, path, options)

    def __reduce__(self) -> tuple[type[ObjectPlace], tuple[str, str, str, StorageOptions]]:
        return ObjectPlace, self._arguments

    @property
    def library_options(self) -> Mapping[str, str]:
        """See ``Place``."""
        return self._options.for_libraries()

    @cached_property
    def _files(self) -> pafs.FileSystem:
        return self._options.filesystem()

    def check(self, directory: str = "") -> None:
        """There are no links in an object store."""

    def make(self) -> None:
        """There are no directories in an object store."""

    def has(self, directory: str) -> bool:
        """See ``Place``."""
        return any(True for _ in self.list_files(directory))

    def new_file(self, path: str) -> NewObject:
        """See ``Place``."""
        with self.failing("create", path):
            return NewObject(self, self._files, f"{self._base}/{path}", path)

    def filesystem(self) -> tuple[pafs.FileSystem, str]:
        """See ``Place``."""
        return self._files, self._base

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        """See ``Place``."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self.failing("read", path), self._files.open_input_file(f"{self._base}/{path}") as stream:
            try:
                with pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=True) as file:
                    yield file
            except (pa.ArrowInvalid, LookupError, ValueError) as error:
                raise FormatError(
                    "table", 0, "pages with matching checksums", str(error), f"{self.root}/{path}"
                ) from error

    def exists(self, path: str) -> bool:
        """See ``Place``."""
        import pyarrow.fs as pafs

        with self.failing("look at", path):
            return bool(self._files.get_file_info(f"{self._base}/{path}").type == pafs.FileType.File)

    def read(self, path: str) -> bytes | None:
        """See ``Place``."""
        try:
            with self.failing("read", path), self._files.open_input_stream(f"{self._base}/{path}") as stream:
                return bytes(stream.read(FILE_BYTES_MAX))
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def write(self, path: str, content: bytes) -> None:
        """See ``Place``."""
        new = self.new_file(path)
        try:
            with self.failing("write", path):
                new.stream.write(content)
        except BaseException:
            new.abandon()
            raise
        new.complete()

    def create(self, path: str, content: bytes) -> bool:
        """See ``Place``. PyArrow has no conditional put; obstore is made of the same library as deltalake."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError
        from obstore.store import from_url

        config: Any = dict(self.library_options)
        client: Any = {"allow_http": config.pop("AWS_ALLOW_HTTP", "") == "true"}
        try:
            store = from_url(self.root, config=config, client_options=client)
            obstore.put(store, path, content, mode="create")
        except AlreadyExistsError:
            return False
        except (BaseError, OSError, ValueError) as error:
            raise DiskError(f"{self.root}/{path}", "create", self.told(error)) from error
        return True

    def remove(self, path: str) -> None:
        """See ``Place``."""
        with self.failing("remove", path):
            self._files.delete_file(f"{self._base}/{path}")

    def list_files(self, below: str = "") -> Iterator[Found]:
        """See ``Place``."""
        import pyarrow.fs as pafs

        where = f"{self._base}/{below}".rstrip("/")
        with self.failing("list", below):
            found = self._files.get_file_info(pafs.FileSelector(where, allow_not_found=True, recursive=True))
        for one in found:
            if one.type == pafs.FileType.File:
                yield Found(one.path.removeprefix(f"{self._base}/"), int((one.mtime_ns or 0) // 1_000_000))

    def sync(self, directory: str, names: Iterable[str]) -> None:
        """An object is durable as soon as it is there."""

    @contextmanager
    def failing(self, operation: str, path: str) -> Iterator[None]:
        """Turns an error of the store into ``DiskError``, whose text has no secrets."""
        try:
            yield
        except OSError as error:
            raise self.error(operation, path, error) from error

    def error(self, operation: str, path: str, error: OSError) -> DiskError:
        """See ``Place``."""
        return DiskError(f"{self.root}/{path}".rstrip("/"), operation, self.told(error))

    def told(self, error: Exception) -> str:
        """See ``Place``."""
        text = str(error)
        if _NO_BUCKET.search(text):
            return f"the bucket {self._arguments[1]} does not exist"
        told = text.partition("\n")[0]
        if match := _ANSWER.search(text):
            told = f"{told}: {match[1]}, {match[2]}"
        elif _CAUSE in text:
            told = f"{told}: {text.rpartition(_CAUSE)[2].strip()}"
        return self._options.hidden(told)


class NewObject:
    """``NewFile`` in an object store.

    Args:
        place: where the table is.
        files: the access to it.
        name: bucket and key.
        path: path in the table.
    """

    def __init__(self, place: ObjectPlace, files: pafs.FileSystem, name: str, path: str) -> None:
        self._place, self._files, self._name, self._path = place, files, name, path
        self.stream = cast(BinaryIO, files.open_output_stream(name))

    def complete(self) -> int:
        """See ``NewFile``."""
        with self._place.failing("write", self._path):
            size = self.stream.tell()
            self.stream.close()
        return size

    def abandon(self) -> None:
        """See ``NewFile``."""
        with suppress(OSError):
            self.stream.close()
        with suppress(OSError):
            self._files.delete_file(self._name)
