"""Tables on an S3 server: each message once, whatever happens to requests; no text has a secret."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.utils.config import Config
from tests.lake.moto_server import CARELESS
from tests.lake.s3_proxy import Fault, FaultyS3, Kind
from tests.lake.s3_server import S3Server
from tests.unit.arrow.stores import open_store, put

from rucola.errors import ConfigError, DiskError, RucolaError
from rucola.lake import archive, archive_raw, compact, restore
from rucola.lake.delta_log import DeltaLog
from rucola.lake.iceberg_log import IcebergLog
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import Change
from rucola.places.storage import open_place
from rucola.places.storage_options import UNSAFE
from rucola.store.message_store import MessageStore

FAULTS = (Fault.SLOW_DOWN, Fault.CUT, Fault.LOST_ANSWER)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    one = open_store(tmp_path / "store")
    put(one, 0, 60)
    yield one
    one.shutdown()


@pytest.fixture
def options(faulty_s3: FaultyS3) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": faulty_s3.access_key,
        "AWS_SECRET_ACCESS_KEY": faulty_s3.secret,
        "AWS_ENDPOINT_URL": faulty_s3.endpoint,
        "AWS_REGION": faulty_s3.region,
    }


@pytest.fixture
def url(s3_server: S3Server) -> str:
    return f"s3://{s3_server.bucket()}/lake/table"


def places(url: str, options: dict[str, str]) -> list[tuple[str, int, int]]:
    table = DeltaTable(url, storage_options={**options, "AWS_ALLOW_HTTP": "true"})
    rows = pa.table(table.to_pyarrow_table()).select(["topic", "queueId", "queueOffset"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_archive_compact_and_clean(tmp_path: Path, store: MessageStore, url: str, options: dict[str, str]) -> None:
    for number in range(2):
        assert archive(url, store=tmp_path / "store", storage_options=options) == (20 if number else 60)
        put(store, 60 + 20 * number, 20)
    assert archive(f"{url.replace('s3:', 's3a:')}/", store=tmp_path / "store", storage_options=options) == 20
    found = places(url, options)
    assert len(found) == 100 == len(set(found))
    assert compact(url, storage_options=options) == (12, 4, 0, 0)
    assert open_table(url, storage_options=options).clean(0) == 12
    assert places(url, options) == found


def test_a_log_comes_back(tmp_path: Path, store: MessageStore, url: str, options: dict[str, str]) -> None:
    for number in range(2):
        assert archive_raw(url, tmp_path / "store", storage_options=options)
        put(store, 60 + 20 * number, 20)
    restore(url, tmp_path / "new", storage_options=options)
    for path in (tmp_path / "new" / "commitlog").iterdir():
        whole = (tmp_path / "store" / "commitlog" / path.name).read_bytes()
        restored = path.read_bytes().rstrip(b"\0")
        assert whole.startswith(restored)
        assert restored


def test_the_environment_is_the_usual_chain(
    tmp_path: Path, store: MessageStore, url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    assert archive(url, store=tmp_path / "store") == 60
    assert compact(url).made == 0


def test_iceberg_with_the_users_catalog(
    tmp_path: Path, store: MessageStore, url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/prod.db",
        "S3__ENDPOINT": options["AWS_ENDPOINT_URL"],
        "S3__ACCESS_KEY_ID": options["AWS_ACCESS_KEY_ID"],
        "S3__SECRET_ACCESS_KEY": options["AWS_SECRET_ACCESS_KEY"],
        "S3__REGION": options["AWS_REGION"],
    }
    for name, value in given.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    place: dict[str, Any] = {"format": "iceberg", "catalog": "prod", "storage_options": options}
    assert archive(url, store=tmp_path / "store", **place) == 60
    put(store, 60, 20)
    assert archive(url, store=tmp_path / "store", **place) == 20
    assert compact(url, **place).made == 4
    from pyiceberg.catalog import load_catalog

    assert load_catalog("prod").load_table("rucola.messages").scan().to_arrow().num_rows == 80
    with pytest.raises(ConfigError, match=r"delta, the format|iceberg, the format"):
        archive(url, store=tmp_path / "store", storage_options=options)


def run_until_done(url: str, directory: Path, options: dict[str, str]) -> None:
    """What a user does: runs again after an error."""
    for _ in range(3):
        with suppress(RucolaError):
            archive(url, store=directory / "store", storage_options=options)
            return
    raise AssertionError("three runs failed")


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *((Kind.CONDITIONAL_PUT, fault) for fault in FAULTS),
        (Kind.PUT, Fault.LOST_ANSWER),
        (Kind.GET, Fault.SLOW_DOWN),
        (Kind.LIST, Fault.CUT),
    ],
)
def test_each_message_once_whatever_happens_to_a_request(
    tmp_path: Path,
    store: MessageStore,
    url: str,
    options: dict[str, str],
    faulty_s3: FaultyS3,
    kind: Kind,
    fault: Fault,
) -> None:
    archive(url, store=tmp_path / "store", storage_options=options)
    for number, times in ((1, 1), (3, 20)) if kind is Kind.CONDITIONAL_PUT else ((1, 1), (2, 1)):
        put(store, 60 + number, 10)
        faulty_s3.fail(number, fault, kind, times=times)
        with suppress(RucolaError):
            archive(url, store=tmp_path / "store", storage_options=options)
        faulty_s3.heal()
        run_until_done(url, tmp_path, options)
    found = places(url, options)
    assert len(found) == 80 == len(set(found))


def test_two_runs(
    tmp_path: Path, store: MessageStore, url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_table(url, storage_options=options)
    assert isinstance(log, DeltaLog)
    write, left = log._write_version, [1]

    def late(*arguments: Any) -> None:
        if left and left.pop():
            archive(url, store=tmp_path / "store", storage_options=options)
        write(*arguments)

    monkeypatch.setattr(log, "_write_version", late)
    monkeypatch.setattr("rucola.lake.open_table", lambda *_, **__: log)
    assert archive(url, store=tmp_path / "store", storage_options=options) == 0
    found = places(url, options)
    assert len(found) == 60 == len(set(found))


def test_a_store_that_ignores_conditions_is_refused(
    tmp_path: Path, store: MessageStore, url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = url.replace("/lake/", CARELESS)
    with pytest.raises(ConfigError, match="refuses a second conditional put"):
        archive(careless, store=tmp_path / "store", storage_options=options)
    assert not DeltaTable.is_deltatable(careless, {**options, "AWS_ALLOW_HTTP": "true"})
    monkeypatch.setenv(UNSAFE, "true")
    with pytest.raises(ConfigError, match="of two runs one would lose its commit"):
        archive(url, store=tmp_path / "store", storage_options=options)


def test_no_text_has_a_secret(
    tmp_path: Path,
    store: MessageStore,
    url: str,
    options: dict[str, str],
    faulty_s3: FaultyS3,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = {**options, "AWS_SECRET_ACCESS_KEY": "wrong/secret+0123456789"}
    texts = []
    for given, kind in ((options, Kind.PUT), (options, Kind.CONDITIONAL_PUT), (wrong, Kind.MULTIPART)):
        faulty_s3.fail(1, Fault.SLOW_DOWN, kind, times=40)
        with pytest.raises(RucolaError) as found:
            archive(url, store=tmp_path / "store", storage_options=given)
        texts += [str(found.value), repr(found.value)]
        faulty_s3.heal()
    place = open_place(url, options)
    texts += [caplog.text, repr(place), repr(open_table(url, storage_options=options))]
    for text in texts:
        for secret in (options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"], "wrong/secret"):
            assert secret not in text
    assert pickle.loads(pickle.dumps(place)).root == url


def test_a_signed_url_is_hidden(options: dict[str, str]) -> None:
    place = open_place("s3://bucket/table", options)
    error = OSError(f"GET https://h/b/k?X-Amz-Signature=abc&AWSAccessKeyId=x failed for {options['AWS_ACCESS_KEY_ID']}")
    assert place.told(error) == "GET https://h/b/k?*** failed for ***"
    assert place.told(OSError("PUT http://user:pass@host/x: 503")) == "PUT http://***@host/x: 503"


@pytest.mark.parametrize(
    ("table", "given", "expected"),
    [
        ("hdfs://host/t", {}, "s3://BUCKET/PATH"),
        ("http://host/t", {}, "s3://BUCKET/PATH"),
        ("s3:///path", {}, "s3://BUCKET/PATH"),
        ("s3://bucket/a#1", {}, "s3://BUCKET/PATH"),
        ("s3://bucket/a?x=1", {}, "s3://BUCKET/PATH"),
        ("s3://bucket/a/../b", {}, "without empty parts"),
        ("s3://bucket/../b", {}, "without empty parts"),
        ("s3://bucket/..", {}, "without empty parts"),
        ("s3://bucket/./b", {}, "without empty parts"),
        ("s3://bucket/a//b", {}, "without empty parts"),
        ("s3a://bucket//a", {}, "without empty parts"),
        ("s3://bucket/a//", {}, "without empty parts"),
        ("s3://bucket//", {}, "without empty parts"),
        ("s3:/bucket/a", {}, "s3://BUCKET/PATH"),
        ("s3://../a", {}, "s3://BUCKET/PATH"),
        ("s3://./a", {}, "s3://BUCKET/PATH"),
        ("s3://a b/c", {}, "s3://BUCKET/PATH"),
        ("s3://host:9000/bucket/a", {}, "s3://BUCKET/PATH"),
        ("s3://key:secret@bucket/a", {}, r"'s3://\*\*\*@bucket/a'"),
        ("abfss://account/a", {}, "s3://BUCKET/PATH"),
        ("gs://b/a/./c", {}, "without empty parts"),
        ("s3://bucket/t", {"AWS_PROFILE": "x"}, "AWS_ACCESS_KEY_ID"),
        ("/lake", {"AWS_REGION": "x"}, "which is a directory"),
    ],
)
def test_other_places_and_options_are_refused(table: str, given: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        open_place(table, given)


@pytest.mark.parametrize("path", ["", "/lake/table"])
def test_a_bucket_that_does_not_exist_is_named(
    tmp_path: Path, store: MessageStore, options: dict[str, str], path: str
) -> None:
    url = f"s3://no-such-bucket{path}"
    for act in (
        lambda: archive(url, store=tmp_path / "store", storage_options=options),
        lambda: archive_raw(url, tmp_path / "store", storage_options=options),
        lambda: compact(url, storage_options=options),
        lambda: restore(url, tmp_path / "new", storage_options=options),
        lambda: open_place(url, options).write("x", b"x"),
        lambda: open_place(url, options).create("x", b"x"),
    ):
        with pytest.raises(DiskError, match="the bucket no-such-bucket does not exist"):
            act()
    assert not (tmp_path / "new").exists()


def test_an_answer_of_the_store_is_told(url: str, options: dict[str, str]) -> None:
    wrong = open_place(url, {**options, "AWS_SECRET_ACCESS_KEY": "wrong"})
    for act in (DeltaLog(wrong).snapshot, lambda: wrong.create("x", b"x")):
        with pytest.raises(DiskError, match="SignatureDoesNotMatch, The request signature"):
            act()
    gone = open_place(url, {**options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    with pytest.raises(DiskError, match="Generic S3 error: Connection refused"):
        DeltaLog(gone).snapshot()


def test_of_two_formats_on_one_path_one_loses(
    tmp_path: Path, store: MessageStore, url: str, options: dict[str, str]
) -> None:
    slow = IcebergLog(open_place(url, options), cast(Any, SimpleNamespace(load=lambda: None, name="a.b")))
    base = slow.snapshot()
    archive(url, store=tmp_path / "store", storage_options=options)
    with pytest.raises(ConfigError, match="delta: another run has begun such a table at s3://"):
        slow.commit(base, Change("archive", schema={}))
    assert archive(url, store=tmp_path / "store", storage_options=options) == 0


@pytest.mark.parametrize(
    ("table", "root"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3A://bucket/a/", "s3://bucket/a"),
        ("s3://my-bucket.de/a/b", "s3://my-bucket.de/a/b"),
        ("abfss://lake@account.dfs.core.windows.net/a", "abfss://lake@account.dfs.core.windows.net/a"),
    ],
)
def test_a_url_is_kept_as_it_is(table: str, root: str) -> None:
    assert open_place(table).root == root


def test_a_server_that_is_gone_is_an_error(tmp_path: Path, store: MessageStore, options: dict[str, str]) -> None:
    gone = {**options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with pytest.raises(RucolaError) as found:
        archive("s3://bucket/table", store=tmp_path / "store", storage_options=gone)
    assert not isinstance(found.value, ConfigError)
    assert isinstance(found.value, DiskError)
