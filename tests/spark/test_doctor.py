"""The store doctor with tasks in Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree
from typing import TYPE_CHECKING

import pytest
from tests.golden.loader import unpack
from tests.unit.store.stores import SEGMENT, fill, opened, with_topics
from tests.unit.store.test_rebuild import OPTIONS, contents

from rucola.cli.main import main
from rucola.errors import StoreDamagedError
from rucola.spark import session
from rucola.spark.doctor import find, findings, in_spark, statistics
from rucola.store.doctor.rebuild import rebuild
from rucola.store.doctor.salvage import salvage
from rucola.store.offline.search import MessageQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 500, topics=3)
    store.shutdown()
    before = contents(path)
    for part in ("consumequeue", "index"):
        rmtree(path / part)
    report = rebuild(str(path), in_spark(spark), OPTIONS)
    assert (report.records, report.units) == (500, 500)
    assert contents(path) == before
    segment = path / "commitlog" / f"{SEGMENT:020d}"
    data = bytearray(segment.read_bytes())
    data[4:8] = b"\0\0\0\0"
    segment.write_bytes(data)
    with pytest.raises(StoreDamagedError) as caught:
        rebuild(str(path), in_spark(spark), OPTIONS)
    assert (caught.value.path, caught.value.position) == (str(segment), 0)
    assert contents(path) == before


def test_salvage(spark: SparkSession, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    fill(store, 500, topics=3)
    store.shutdown()
    segment, image = tmp_path / "store/commitlog" / f"{SEGMENT:020d}", tmp_path / "image"
    data = bytearray(segment.read_bytes())
    data[4000:5000] = bytes(1000)
    image.write_bytes(b"junk" + data[:9000])
    segment.write_bytes(data[: SEGMENT // 2])
    sources = [str(tmp_path / "store"), str(image)]
    alone = salvage(sources, str(tmp_path / "alone"), options=OPTIONS)
    report = salvage(sources, str(tmp_path / "new"), options=OPTIONS, run=in_spark(spark))
    assert report == replace(alone, output=report.output)
    assert 400 < report.saved < 500 and report.torn > 0 and report.copies > 0 and report.gaps > 0
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    for name in ("commitlog", "quarantine"):
        files = [sorted((tmp_path / one / name).iterdir()) for one in ("new", "alone")]
        assert [file.name for file in files[0]] == [file.name for file in files[1]]
        assert all(one.read_bytes() == two.read_bytes() for one, two in zip(*files, strict=True))


def test_findings_statistics_and_messages_of_several_stores(spark: SparkSession, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for path in paths:
        store = opened(Path(path))
        fill(store, 300)
        store.shutdown()
        with_topics(Path(path))
    (queue,) = (tmp_path / "two/consumequeue/T0/0").glob("*0000")
    queue.write_bytes(bytes(20) + queue.read_bytes()[20:])
    (found,) = findings(spark, paths).collect()
    assert (found.store, found.kind, found.position) == (paths[1], "record_without_unit", 0)
    counted = statistics(spark, paths).groupBy("topic").sum("messages").collect()
    assert {tuple(row) for row in counted} == {("T0", 300), ("T1", 300)}
    rows = find(spark, paths, MessageQuery(key="key-7")).collect()
    assert {(row.store, row.topic, row.tags, row["keys"]) for row in rows} == {
        (path, "T1", "Tag1", "key-7 all") for path in paths
    }


READING = (
    ["verify", "ours", "rocketmq", "--json"],
    ["verify", "ours"],
    ["stats", "ours", "rocketmq", "--by", "store,topic,queue,tag,hour", "--json"],
    ["find", "ours", "rocketmq", "--key", "key-7"],
    ["find", "ours", "rocketmq", "--max", "330", "--json"],
    ["verify", "ours", "nothing"],
    ["stats", "nothing"],
)
MADE = ("damaged", "new")
WRITING = (
    (["repair", "damaged", "--json"], "damaged"),
    (["rebuild", "damaged", "--json"], "damaged"),
    (["salvage", "ours", "rocketmq", "-o", "new", "--json"], "new"),
)


def test_commands_of_rucola_store_do_the_same_in_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code, output and files are those of the same command without ``--spark``."""
    monkeypatch.setattr(session, "command_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(words: list[str], base: Path, *where: str) -> tuple[int, str, str]:
        known = {path.name: str(path) for path in tmp_path.iterdir()} | {name: str(base / name) for name in MADE}
        code = main(["store", *(known.get(word, word) for word in words), *where])
        found = capsys.readouterr()
        return code, found.out.replace(str(base), ""), found.err

    store = opened(tmp_path / "ours")
    fill(store, 300)
    store.shutdown()
    with_topics(tmp_path / "ours")
    unpack("killed_bad_magic", tmp_path / "rocketmq")
    (tmp_path / "nothing").mkdir()
    codes = []
    for words in READING:
        code, out, error = run(words, tmp_path)
        assert run(words, tmp_path, "--spark", "local[2]") == (code, out, error)
        codes.append(code)
    assert codes == [1, 0, 0, 0, 0, 5, 5]
    bases = tmp_path / "here", tmp_path / "there"
    for base in bases:
        copytree(tmp_path / "ours", base / "damaged")
        (queue,) = (base / "damaged/consumequeue/T0/0").glob("*0000")
        queue.write_bytes(bytes(20) + queue.read_bytes()[20:])
    for words, name in WRITING:
        here = run(words, bases[0], "--jobs", "1")
        assert run(words, bases[1], "--spark", "local[2]") == here and here[0] == 0
        assert contents(bases[1] / name) == contents(bases[0] / name)
        logs = [sorted((base / name / "commitlog").iterdir()) for base in bases]
        assert [one.read_bytes() for one in logs[1]] == [one.read_bytes() for one in logs[0]]
    (log,) = (bases[1] / "damaged/commitlog").glob("*0000")
    log.write_bytes(bytes(100) + log.read_bytes()[100:])
    code, out, error = run(["rebuild", "damaged"], bases[1], "--spark", "local[2]")
    assert (code, out) == (5, "") and f"{log}, position 0" in error and error.count("\n") == 1
