"""What the lake relies on in deltalake when a table lies on S3. A new version of deltalake that behaves in another way
fails here.
"""

from __future__ import annotations

import json
import math
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from tests.lake.options import HASTY, delta_options
from tests.lake.s3_proxy import Fault, FaultyS3, Kind
from tests.lake.s3_server import SECRET, S3Server

SCHEMA = pa.schema([("day", pa.string()), ("number", pa.int32())])
EMPTY = b"""{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}
{"metaData":{"id":"1","format":{"provider":"parquet","options":{}},"partitionColumns":["day"],"configuration":{},\
"schemaString":"{\\"type\\":\\"struct\\",\\"fields\\":[\
{\\"name\\":\\"day\\",\\"type\\":\\"string\\",\\"nullable\\":true,\\"metadata\\":{}},\
{\\"name\\":\\"number\\",\\"type\\":\\"integer\\",\\"nullable\\":true,\\"metadata\\":{}}]}"}}
"""
"""The first commit of a table without rows; one request, where ``DeltaTable.create`` makes fourteen."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
COMMIT_ID = "rucola.commit"
EXACTLY_NEXT = 0
"""``max_commit_retries`` of a commit that becomes the version after the one that was read, or fails."""


class Writer:
    """A writer that has read a table, through a server or a proxy."""

    def __init__(self, s3: S3Server | FaultyS3, url: str) -> None:
        self.table = DeltaTable(url, storage_options=delta_options(s3, **HASTY))

    def commit(self, name: str, *transactions: Transaction, retries: int | None = None) -> None:
        """Commits a file; the commit has its name as id."""
        stats = json.dumps({"numRecords": 1})
        self.table.create_write_transaction(
            [AddAction(f"day=1/{name}.parquet", 100, {"day": "1"}, 1_700_000_000_000, True, stats)],
            "append",
            self.table.schema(),
            ["day"],
            commit_properties=CommitProperties({COMMIT_ID: name}, retries, list(transactions)),
            post_commithook_properties=NO_HOOKS,
        )


def create(s3: S3Server | FaultyS3, url: str, retries: int | None = None, **options: Any) -> None:
    DeltaTable.create(
        url,
        SCHEMA,
        partition_by=["day"],
        storage_options=delta_options(s3, **HASTY, **options),
        commit_properties=CommitProperties(None, retries),
    )


@pytest.fixture
def url(each_s3_server: S3Server) -> str:
    """An empty table."""
    bucket = each_s3_server.bucket()
    with each_s3_server.client() as client:
        assert client.put(f"/{bucket}/table/_delta_log/00000000000000000000.json", EMPTY).status == 200
    return f"s3://{bucket}/table"


@pytest.fixture
def s3(each_faulty_s3: FaultyS3, url: str) -> FaultyS3:
    """The proxy; requests that create the table do not go through it."""
    return each_faulty_s3


def commits(s3: S3Server, url: str) -> list[str]:
    """Returns the ids of a table's commits after the first one."""
    log = DeltaTable(url, storage_options=delta_options(s3)).history()
    return [one[COMMIT_ID] for one in reversed(log) if COMMIT_ID in one]


def error_of(call: Callable[[], Any]) -> Exception:
    """Returns what the call raises; no text of it may show the secret or a signature."""
    with pytest.raises((OSError, DeltaError)) as raised:
        call()
    text = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
    assert SECRET not in text
    assert "X-Amz-" not in text
    assert "Credential" not in text
    return raised.value


def meanwhile(s3: FaultyS3, work: Callable[[], Any], other: Callable[[], Any]) -> Exception | None:
    """Does ``other`` just before the commit of ``work`` reaches the server; returns the error of ``work``."""
    errors: list[Exception | None] = []

    def guarded() -> None:
        try:
            work()
            errors.append(None)
        except Exception as error:  # noqa: BLE001 - returned
            errors.append(error)

    s3.fail(1, Fault.HOLD, Kind.CONDITIONAL_PUT)
    thread = threading.Thread(target=guarded)
    thread.start()
    s3.wait_held()
    other()
    s3.release()
    thread.join()
    return errors[0]


@pytest.mark.parametrize("more", [{}, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}])
def test_commits_are_conditional_puts(s3: FaultyS3, each_s3_server: S3Server, more: dict[str, str]) -> None:
    bucket = each_s3_server.bucket()
    create(s3, f"s3://{bucket}/table", **more)
    written = [one for one in s3.requests if one.method != "GET"]
    assert [(one.kind, one.key) for one in written] == [
        (Kind.CONDITIONAL_PUT, f"{bucket}/table/_delta_log/00000000000000000000.json")
    ]


def test_without_conditional_puts_nothing_is_written(s3: FaultyS3, each_s3_server: S3Server) -> None:
    bucket = each_s3_server.bucket()
    error = error_of(lambda: create(s3, f"s3://{bucket}/table", aws_conditional_put="disabled"))
    assert "conditional put is disabled" in str(error)
    assert s3.counts().keys() == {Kind.LIST}


def test_of_two_writers_of_one_application_one_fails(s3: FaultyS3, url: str, each_s3_server: S3Server) -> None:
    first, second, other = (Writer(s3, url) for _ in range(3))
    first.commit("first", Transaction("app", 5))
    error = error_of(lambda: second.commit("second", Transaction("app", 6)))
    assert isinstance(error, CommitFailedError)
    assert "Concurrent transaction failed" in str(error)
    other.commit("other", Transaction("another", 1))
    assert commits(each_s3_server, url) == ["first", "other"]


def test_the_number_of_an_application_is_not_compared_with_what_was_read(
    s3: FaultyS3, url: str, each_s3_server: S3Server
) -> None:
    """A writer must look itself, whether its number is the next one."""
    for name, number in (("a", 5), ("b", 5), ("c", 3)):
        Writer(s3, url).commit(name, Transaction("app", number))
    assert commits(each_s3_server, url) == ["a", "b", "c"]
    assert Writer(s3, url).table.transaction_version("app") == 3


def test_a_commit_that_came_late_is_moved_to_the_next_version(s3: FaultyS3, url: str, each_s3_server: S3Server) -> None:
    late = Writer(s3, url)
    assert meanwhile(s3, lambda: late.commit("late"), lambda: Writer(each_s3_server, url).commit("early")) is None
    assert commits(each_s3_server, url) == ["early", "late"]


def test_without_retries_a_commit_is_the_next_version_or_fails(
    s3: FaultyS3, url: str, each_s3_server: S3Server
) -> None:
    fresh, stale, late = (Writer(s3, url) for _ in range(3))
    fresh.commit("fresh", retries=EXACTLY_NEXT)
    s3.forget()
    assert isinstance(error_of(lambda: stale.commit("stale", retries=EXACTLY_NEXT)), CommitFailedError)
    assert s3.counts() == {Kind.LIST: 1}
    late.table.update_incremental()
    error = meanwhile(
        s3,
        lambda: late.commit("late", retries=EXACTLY_NEXT),
        lambda: Writer(each_s3_server, url).commit("early"),
    )
    assert isinstance(error, CommitFailedError)
    assert commits(each_s3_server, url) == ["fresh", "early"]


@pytest.mark.parametrize(("retries", "versions"), [(None, 2), (EXACTLY_NEXT, 1)])
def test_of_two_who_create_a_table_the_second_replaces_its_metadata_or_fails(
    s3: FaultyS3, each_s3_server: S3Server, retries: int | None, versions: int
) -> None:
    url = f"s3://{each_s3_server.bucket()}/table"
    error = meanwhile(s3, lambda: create(s3, url, retries), lambda: create(each_s3_server, url))
    assert (error is None) == (versions == 2)
    assert error is None or isinstance(error, CommitFailedError)
    assert DeltaTable(url, storage_options=delta_options(each_s3_server)).version() == versions - 1


@pytest.mark.parametrize("how", [Fault.LOST_ANSWER, Fault.SLOW_DOWN_DONE])
def test_a_lost_answer_is_reported_as_another_writers_commit(
    s3: FaultyS3, url: str, each_s3_server: S3Server, how: Fault
) -> None:
    """The put is sent again and refused, since the first one is in. Only the commit's id tells whose it is."""
    writer = Writer(s3, url)
    s3.forget()
    s3.fail(1, how, Kind.CONDITIONAL_PUT)
    error = error_of(lambda: writer.commit("own", Transaction("app", 1), retries=EXACTLY_NEXT))
    assert isinstance(error, CommitFailedError)
    assert [one.status for one in s3.requests if one.kind is Kind.CONDITIONAL_PUT] == [
        0 if how is Fault.LOST_ANSWER else 503,
        412,
    ]
    assert commits(each_s3_server, url) == ["own"]


def test_a_lost_answer_without_a_transaction_commits_twice(s3: FaultyS3, url: str, each_s3_server: S3Server) -> None:
    """Readers of changes get the rows twice: no commit may go without a transaction, or with retries."""
    writer = Writer(s3, url)
    s3.fail(1, Fault.LOST_ANSWER, Kind.CONDITIONAL_PUT)
    writer.commit("own")
    assert commits(each_s3_server, url) == ["own", "own"]


@pytest.mark.parametrize("how", [Fault.SLOW_DOWN, Fault.CUT])
def test_a_request_that_fails_is_sent_again(s3: FaultyS3, url: str, each_s3_server: S3Server, how: Fault) -> None:
    for kind in (Kind.LIST, Kind.GET, Kind.CONDITIONAL_PUT):
        s3.fail(1, how, kind)
    Writer(s3, url).commit("a", retries=EXACTLY_NEXT)
    assert sum(one.fault is how for one in s3.requests) == 3
    assert commits(each_s3_server, url) == ["a"]


@pytest.mark.parametrize(
    ("kind", "how"),
    [(Kind.LIST, Fault.SLOW_DOWN), (Kind.GET, Fault.CUT), (Kind.CONDITIONAL_PUT, Fault.SLOW_DOWN)],
)
def test_a_store_that_stays_away_is_an_os_error_or_a_delta_error(
    s3: FaultyS3, url: str, each_s3_server: S3Server, kind: Kind, how: Fault
) -> None:
    """An error does not say that the commit is not in: ``GET`` fails after it."""
    writer = Writer(s3, url)
    s3.forget()
    s3.fail(1, how, kind, times=math.inf)
    error = error_of(lambda: writer.commit("a", retries=EXACTLY_NEXT))
    expected = "DeltaError" if kind is Kind.LIST else "OSError"
    assert type(error).__name__ == expected
    assert "after 2 retries" in str(error)
    assert s3.counts()[kind] == 3
    assert commits(each_s3_server, url) == (["a"] if kind is Kind.GET else [])


def test_errors_of_access_hide_the_secret(s3: FaultyS3, url: str, each_s3_server: S3Server) -> None:
    right = delta_options(each_s3_server, **HASTY)
    for wrong in ({"AWS_SECRET_ACCESS_KEY": SECRET[::-1]}, {"AWS_ACCESS_KEY_ID": "ANOTHER"}):
        error = error_of(partial(DeltaTable, url, storage_options=right | wrong))
        assert "403 Forbidden" in str(error)
        assert SECRET[::-1] not in str(error)
    nowhere = right | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert "Connection refused" in str(error_of(lambda: DeltaTable(url, storage_options=nowhere)))


def test_numbers_of_requests(s3: FaultyS3, url: str, each_s3_server: S3Server) -> None:
    """Each commit since the checkpoint is read twice when a table is opened, and once for each look at an application's
    number.
    """
    for number in range(4):
        s3.forget()
        writer = Writer(each_s3_server, url)
        writer.commit(f"{number}", Transaction("app", number))
    writer = Writer(s3, url)
    assert s3.counts() == {Kind.LIST: 1, Kind.GET: 1 + 2 * 5}
    s3.forget()
    writer.table.transaction_version("app")
    assert s3.counts() == {Kind.GET: 5}
    s3.forget()
    writer.table.file_uris()
    writer.table.get_add_actions(flatten=True)
    assert s3.counts() == {}
    writer.commit("last", Transaction("app", 4), retries=EXACTLY_NEXT)
    assert s3.counts() == {Kind.LIST: 2, Kind.CONDITIONAL_PUT: 1, Kind.GET: 2}
    writer.table.update_incremental()
    writer.table.create_checkpoint()
    s3.forget()
    Writer(s3, url).table.transaction_version("app")
    assert sum(s3.counts().values()) <= 16
