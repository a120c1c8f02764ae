"""Decisions about groups, without network and etcd: elections, and what the recordings do not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rucola.controller.elect import BrokerLiveInfo, elect, epoch_after
from rucola.controller.group import MEMBERS_MAX, BrokerGroup, BrokerMember
from rucola.controller.replicas_info import (
    Decision,
    apply_broker_id,
    clean_broker_data,
    elect_master,
    register_broker,
    replica_info,
)
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.headers.controller import (
    ApplyBrokerIdRequestHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)


class Live:
    """Brokers that live: heard ones with what they said; ``quiet`` ones have only not been declared dead."""

    def __init__(self, heard: dict[int, BrokerLiveInfo], quiet: frozenset[int] = frozenset()) -> None:
        self._heard, self._quiet = heard, quiet

    def is_alive(self, _group: BrokerGroup, broker_id: int) -> bool:
        return broker_id in self._heard or broker_id in self._quiet

    def info(self, _group: BrokerGroup, broker_id: int) -> BrokerLiveInfo | None:
        return self._heard.get(broker_id)


def group(
    members: int = 3, master: int | None = 1, in_sync: tuple[int, ...] = (1, 2, 3), epoch: int = 4
) -> BrokerGroup:
    return BrokerGroup(
        "c",
        "a",
        {one: BrokerMember(f"h{one}:1", f"h{one}:1;0") for one in range(1, members + 1)},
        members + 1,
        master,
        epoch,
        frozenset(in_sync),
        7,
    )


def live(*broker_ids: int) -> Live:
    return Live({one: BrokerLiveInfo(1, 100) for one in broker_ids})


BIG = 1 << 40
ELECTIONS = {
    "the old master lives": (group(), live(1, 2, 3), None, False, 1),
    "the old master lives, another one is designated": (group(), live(1, 2, 3), 3, False, 3),
    "the old master is designated": (group(), live(1, 2), 1, False, 1),
    "a dead one is designated": (group(), live(1, 2), 3, False, None),
    "one that is not in sync is designated": (group(in_sync=(1, 2)), live(1, 2, 3), 3, False, None),
    "the same, unclean": (group(in_sync=(1, 2)), live(1, 2, 3), 3, True, 3),
    "nobody in sync lives": (group(in_sync=(1,)), live(2, 3), None, False, None),
    "nobody in sync lives, unclean": (group(in_sync=(1,)), live(2, 3), None, True, 2),
    "the larger epoch": (
        group(), Live({2: BrokerLiveInfo(1, BIG), 3: BrokerLiveInfo(2, 5)}), None, False, 3,
    ),
    "the larger offset, by more than 2 GiB": (
        group(), Live({2: BrokerLiveInfo(1, 5), 3: BrokerLiveInfo(1, 5 + (3 << 30))}), None, False, 3,
    ),
    "the smaller priority": (
        group(), Live({2: BrokerLiveInfo(1, 5, 9), 3: BrokerLiveInfo(1, 5, 8)}), None, False, 3,
    ),
    "equals": (group(), live(3, 2), None, False, 2),
    "the old master is quiet, and not declared dead": (
        group(), Live({2: BrokerLiveInfo()}, frozenset((1,))), None, False, 1,
    ),
    "quiet ones are no candidates": (group(), Live({}, frozenset((2, 3))), None, False, None),
    "no master, and the set lives": (group(master=None), live(2, 3), None, False, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", ELECTIONS)
def test_elections(name: str) -> None:
    whom, who, preferred, unclean, expected = ELECTIONS[name]
    assert elect(whom, who, preferred, unclean) == expected


def test_the_next_epoch_is_larger_than_those_of_the_logs() -> None:
    assert epoch_after(group(), live(1)) == 5
    assert epoch_after(group(), Live({2: BrokerLiveInfo(9, 1)})) == 10
    assert epoch_after(group(), Live({2: BrokerLiveInfo((1 << 31) - 1, 1)})) == 5, "a useless one does not count"
    assert epoch_after(group(epoch=0), Live({1: BrokerLiveInfo(-1, -1)})) == 1


def elected(whom: BrokerGroup | None, who: Live, broker_id: int = -1, designate: bool = False) -> Decision:
    return elect_master(whom, ElectMasterRequestHeader("c", "a", broker_id, designate), who, unclean=False)


def test_the_first_master_is_who_asks() -> None:
    new = group(master=None, in_sync=(), epoch=0)
    assert elected(new, live(), 2).group == new.with_master(2, 1)
    assert elected(new, live(), 9).code == 2012, "not of the group"
    assert elected(new, live(1), 2, designate=True).code == 2012, "who is designated must live"
    assert elected(new, Live({2: BrokerLiveInfo()}), 2, designate=True).group == new.with_master(2, 1)
    assert elected(None, live(1), 1).code == 2010


def test_an_election_without_candidates() -> None:
    found = elected(group(in_sync=(1,)), live(2))
    assert (found.code, found.group) == (2004, replace(group(in_sync=(1,)), master_broker_id=None, master_epoch=5))
    assert found.group is not None and found.group.sync_state_set == {1}
    refused = elected(group(in_sync=(1,)), live(2), 2)
    assert (refused.code, refused.group) == (2012, None), "a broker's question changes nothing"


def applied(whom: BrokerGroup | None, broker_id: int, code: str = "x:1;9", cluster: str = "c") -> Decision:
    return apply_broker_id(whom, ApplyBrokerIdRequestHeader(cluster, "a", broker_id, code))


def test_ids() -> None:
    assert applied(None, 1).group == BrokerGroup("c", "a", {1: BrokerMember("x:1", "x:1;9")}, 2)
    assert applied(None, 2).code == 2014
    later = applied(group(), 7).group
    assert later is not None and later.next_broker_id == 8
    assert applied(group(), 2).code == 2014
    again = applied(group(), 2, "h2:1;0")
    assert (again.code, again.group) == (0, None)
    assert applied(group(), 4, cluster="d").remark == "Broker-set: a belongs to the cluster c"
    full = group(members=MEMBERS_MAX)
    assert applied(full, MEMBERS_MAX + 1).remark == "Broker-set: a has 64 brokers already"
    removed = group().without_members(frozenset((3,)))
    assert applied(removed, 3).code == 2014, "an id is given once"


def test_a_broker_that_has_moved() -> None:
    asked = RegisterBrokerToControllerRequestHeader("c", "a", 1, "new:1")
    found = register_broker(group(), asked, live(1))
    assert found.group is not None and found.group.members[1] == BrokerMember("new:1", "h1:1;0")
    assert found.group.master_address == "new:1"
    fields = found.header.to_ext_fields() if found.header is not None else {}
    assert fields["masterAddress"] == "new:1"
    assert register_broker(found.group, asked, live(1)).group is None
    silent = register_broker(group(), asked, live(2)).header
    assert silent is not None and "masterBrokerId" not in silent.to_ext_fields()


def cleaned(who: Live, ids: str | None, living: bool = False, whom: BrokerGroup | None = None) -> Decision:
    header = CleanControllerBrokerDataRequestHeader("a", "c", ids, living)
    return clean_broker_data(whom or group(), header, who)


def test_removals() -> None:
    one_less = cleaned(live(1, 2), "3").group
    assert one_less is not None and sorted(one_less.members) == [1, 2]
    assert (sorted(one_less.sync_state_set), one_less.sync_state_set_epoch) == ([1, 2], 8)
    assert (one_less.master_broker_id, one_less.master_epoch, one_less.next_broker_id) == (1, 4, 4)
    assert cleaned(live(3), "3").code == 2009
    lost_master = cleaned(live(1), "1", living=True).group
    assert lost_master is not None and (lost_master.master_broker_id, lost_master.master_epoch) == (None, 5)
    assert cleaned(live(), "1;2;3").is_removal
    assert cleaned(live(1), None).code == 2009
    assert cleaned(live(1), None, living=True).is_removal
    assert cleaned(live(), None, whom=group(master=None)).is_removal
    assert cleaned(live(), "9") == Decision()
    assert cleaned(live(), "1;").code == 2009


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"layout": 2}, "layout 1, got 2"),
        ({"masterBrokerId": 9}, r"brokers of the group \(\[1, 2, 3\]\), got \[9\]"),
        ({"syncStateSet": [1, 8]}, r"got \[8\]"),
        ({"nextBrokerId": 3}, "ids from 1 and below 3"),
        ({"masterEpoch": -1}, "epochs of 0 or more"),
        ({"members": {"1": {}}}, "BrokerMember, address"),
        ({"brokerName": None}, "brokerName"),
    ],
)
def test_a_value_that_contradicts_itself_is_no_group(change: dict[str, object], expected: str) -> None:
    assert BrokerGroup.decode(group().encode()) == group()
    with pytest.raises(FormatError, match=expected):
        BrokerGroup.decode(fastjson.dumps(group().to_dict() | change))


def test_a_group_without_master() -> None:
    header = replica_info(group(master=None)).header
    assert header is not None and header.to_ext_fields() == {"masterEpoch": "4"}
