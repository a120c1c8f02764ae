"""Members of groups over time: what is stored, how much of it, and what the page makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.administered import CLIENT_ID
from tests.unit.console.test_changes import play
from tests.unit.console.visitor import Seen

from rucola.console import memberships
from rucola.console.history import History
from rucola.console.memberships import AGE_MS_MAX, LOOK_GAP_MS, ROWS_OF_GROUP_MAX, STATE_BYTES_MAX, packed, unpacked
from rucola.errors import DiskError

NOW = 1_780_000_000_000
A, B = packed({"a": ("T b 0",)}), packed({"a": ("T b 0",), "b": None})


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(str(tmp_path))


def test_rows_come_back(history: History) -> None:
    history.members.add("prod\n", NOW, {"g": A})
    history.members.add("prod\n", NOW + 60_000, {"g": B, "h": A})
    found = history.members.read("prod\n", "g", NOW)
    assert found.rows == [(NOW, {"a": ("T b 0",)}), (NOW + 60_000, {"a": ("T b 0",), "b": None})]
    assert found.looked == [(NOW, NOW + 60_000)]
    late = history.members.read("prod\n", "g", NOW + 90_000)
    assert late.rows == found.rows[1:], "the row that held then is older than what was asked for"
    assert history.members.latest("prod\n") == {"g": B, "h": A}


def test_another_account_sees_nothing(history: History) -> None:
    history.members.add("prod\nalice", NOW, {"g": A})
    assert history.members.read("prod\n", "g", 0).rows == [] and history.members.latest("test\nalice") == {}


def test_a_pause_is_a_gap(history: History) -> None:
    for at in (NOW, NOW + LOOK_GAP_MS, NOW + 2 * LOOK_GAP_MS + 1, NOW + 2 * LOOK_GAP_MS + 2):
        history.members.add("prod\n", at, {})
    last = NOW + 2 * LOOK_GAP_MS
    assert history.members.read("prod\n", "g", 0).looked == [(NOW, NOW + LOOK_GAP_MS), (last + 1, last + 2)]


def test_a_clock_that_is_set_back_begins_anew(history: History) -> None:
    history.members.add("prod\n", NOW, {"g": A})
    for at in (NOW - 1_000_000, NOW - 999_000):
        history.members.add("prod\n", at, {"g": B})
    assert history.members.read("prod\n", "g", 0).looked == [(NOW - 1_000_000, NOW - 999_000)]


def test_rows_of_a_group_are_bounded(history: History) -> None:
    history.members.add("prod\n", NOW, {"quiet": A})
    for number in range(ROWS_OF_GROUP_MAX + 20):
        history.members.add("prod\n", NOW + number, {"g": packed({str(number): ()})})
    rows = history.members.read("prod\n", "g", 0).rows
    assert len(rows) == ROWS_OF_GROUP_MAX and list(rows[-1][1]) == [str(ROWS_OF_GROUP_MAX + 19)]
    assert len(history.members.read("prod\n", "quiet", 0).rows) == 1, "a group that changes often costs only itself"


def test_all_rows_are_bounded(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memberships, "ROWS_MAX", 10)
    for number in range(15):
        history.members.add("prod\n", NOW + number, {f"g{number}": A})
    assert sorted(history.members.latest("prod\n")) == sorted(f"g{number}" for number in range(5, 15))


def test_old_rows_go(history: History) -> None:
    history.members.add("prod\n", NOW, {"g": A})
    history.members.add("prod\n", NOW + AGE_MS_MAX + 1, {"h": A})
    found = history.members.read("prod\n", "g", 0)
    assert found.rows == [] and len(found.looked) == 1


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    first = History(str(tmp_path))
    first.members.add("prod\n", NOW, {"g": A})
    first.close()
    assert History(str(tmp_path)).members.latest("prod\n") == {"g": A}


def test_large_groups_are_cut() -> None:
    queues = tuple(f"topic-{number * 7919} broker-{number * 104729} {number}" for number in range(2_000))
    members = {f"10.0.0.{number}@{number * 7919}": queues[number::50] for number in range(50)}
    state = packed(members)
    assert len(state) <= STATE_BYTES_MAX and unpacked(state) == dict.fromkeys(members)
    many = {f"{number * 7919 % 104729}@{number * 104729 % 7919}": None for number in range(5_000)}
    assert len(packed(many)) <= STATE_BYTES_MAX and 0 < len(unpacked(packed(many))) < 5_000
    assert packed({"a": (), "b": ()}) == packed({"b": (), "a": ()})


@pytest.mark.parametrize("state", [b"", b"junk", A[:-3], b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_damaged_rows_are_empty(state: bytes) -> None:
    assert unpacked(state) in ({}, {"a": ("T b 0",)})


def test_an_error_of_the_disk_is_named(history: History) -> None:
    history.close()
    for call in (lambda: history.members.add("", NOW, {}), lambda: history.members.latest("")):
        with pytest.raises(DiskError, match="members"):
            call()


def told(*queues: int) -> bytes:
    entries = ",".join(f'{{"brokerName":"broker-a","queueId":{queue},"topic":"T_live"}}:{{}}' for queue in queues)
    return f'{{"mqTable":{{{entries}}},"subscriptionSet":[],"properties":{{}}}}'.encode()


def test_a_group_over_time(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        watch = it.console.watch("cluster")

        async def look(*queues: int) -> None:
            it.there.consumer.register_processor(307, it.there._taker(told(*queues)))
            for _ in range(2):  # the first round sees the members, the next one asks them all
                watch.poller.expect_change()
                await watch.look()

        for _ in range(2):
            await watch.look()
        found = await it.api("members?name=G_live")
        assert found["spans"][-1]["queues"] is None, "a member that does not tell is not one without queues"
        await look(0, 1)
        await look(1)
        found = await it.api("members?name=G_live")
        newest = found["changes"][0]
        assert (newest["members"], newest["joined"], newest["left"], newest["moved"]) == (1, [], [], 1)
        assert newest["moves"] == [{"queue": "T_live broker-a 0", "before": CLIENT_ID, "after": ""}]
        assert found["spans"][-1]["client"] == CLIENT_ID and found["spans"][-1]["queues"] == ["T_live broker-a 1"]
        page = await it.page("members?name=G_live")
        assert page.has("svg", **{"class": "lanes"}) and "T_live broker-a 0" in page.text
        await it.there.consumer.close()
        while (await it.api("members?name=G_live"))["changes"][0]["members"]:
            watch.poller.expect_change()
            await watch.look()
        gone = (await it.api("members?name=G_live"))["changes"][0]
        assert gone["left"] == [CLIENT_ID] and gone["moves"][0]["after"] == ""
        assert any("members?name=G_live" in link for link in (await it.page("group?name=G_live")).links)

    play(tmp_path, work)


def test_what_was_not_seen(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        assert (await it.visitor.get("/cluster/members?name=nothing")).status == 404
        assert (await it.visitor.get("/cluster/members?name=G_live&hours=0")).status == 400
        found = await it.api("members?name=G_live")
        assert (found["changes"], found["spans"], found["since_ms"]) == ([], [], None)
        assert "has not seen its members" in (await it.page("members?name=G_live")).text

    play(tmp_path, work)
