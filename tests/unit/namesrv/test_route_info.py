"""The name server's tables, without sockets."""

from __future__ import annotations

import pytest

from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.namesrv import kv_config
from rucola.namesrv.route_info import BrokerRegistration, RegistrationResult, RouteInfoManager, RouteLimits
from rucola.protocol.bodies.route import QueueData
from rucola.testing.clock import ManualClock

V1, V2 = DataVersion(0, 1, 1), DataVersion(0, 2, 2)
MASTER = BrokerRegistration("C", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10912")
SLAVE = BrokerRegistration("C", "broker-a", 1, "10.0.0.2:10911", "10.0.0.2:10912")
OTHER = BrokerRegistration("C", "broker-b", 0, "10.0.0.3:10911")


def topics(*names: str, queues: int = 4) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, queues, queues, 6) for name in names}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def routes(clock: ManualClock) -> RouteInfoManager:
    return RouteInfoManager(clock.monotonic)


def test_a_route_names_queues_and_addresses(routes):
    assert routes.route("T") is None
    assert routes.register(MASTER, topics("T", "U"), V1, "ch1") == RegistrationResult()
    routes.register(OTHER, topics("T", "V", queues=2), V1, "ch2")
    route = routes.route("T")
    assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [
        ("broker-a", 4),
        ("broker-b", 2),
    ]
    assert [data.broker_addrs for data in route.broker_datas] == [{0: MASTER.address}, {0: OTHER.address}]
    assert routes.clusters() == {"C": ["broker-a", "broker-b"]}
    assert sorted(routes.topics()) == ["T", "U", "V"]
    assert sorted(routes.topics_of_cluster("C")) == ["T", "U", "V"]
    assert routes.system_topics() == (["C", "broker-a", "broker-b"], MASTER.address)


def test_queue_data_follow_the_version(routes):
    routes.register(MASTER, topics("T", "U"), V1, "ch")
    routes.register(MASTER, topics("T", "U", queues=9), V1, "ch")
    assert routes.route("T").queue_datas[0].write_queue_nums == 4
    routes.register(MASTER, topics("T", queues=9), V2, "ch")
    assert routes.route("T").queue_datas[0].write_queue_nums == 9
    assert routes.route("U").queue_datas[0].write_queue_nums == 4
    assert routes.data_version("C", MASTER.address) == V2


def test_one_topic_from_an_unknown_address_is_refused(routes):
    assert routes.register(MASTER, topics("T"), V1, "ch") is None
    assert routes.brokers() == {}
    routes.register(MASTER, topics("T", "U"), V1, "ch")
    assert routes.register(MASTER, topics("New"), V2, "ch") is not None
    assert routes.route("New") is not None


def test_a_slave_hears_of_its_master_and_does_not_speak_for_topics(routes):
    assert routes.register(SLAVE, topics("T", "U"), V1, "s") == RegistrationResult()
    assert routes.route("T") is None
    routes.register(MASTER, topics("T", "U"), V1, "m")
    result = routes.register(SLAVE, topics("T", "X"), V2, "s")
    assert result == RegistrationResult(MASTER.address, MASTER.ha_address)
    assert routes.route("X") is None
    assert routes.route("T").broker_datas[0].broker_addrs == {0: MASTER.address, 1: SLAVE.address}


def test_an_address_has_one_id_and_an_id_with_a_newer_state_keeps_its_holder(routes):
    routes.register(MASTER, topics("T", "U"), DataVersion(5, 1, 1), "m")
    usurper = BrokerRegistration("C", "broker-a", 0, "10.0.0.9:1")
    assert routes.register(usurper, topics("T", "U"), DataVersion(4, 1, 1), "x") == RegistrationResult()
    assert routes.members("broker-a").broker_addrs == {0: MASTER.address}
    moved = BrokerRegistration("C", "broker-a", 2, MASTER.address)
    routes.register(moved, topics("T", "U"), DataVersion(5, 1, 1), "m")
    assert routes.members("broker-a").broker_addrs == {2: MASTER.address}


@pytest.mark.parametrize("way", ["goodbye", "channel", "silence"])
def test_a_lost_broker_takes_its_routes_with_it(routes, clock, way):
    routes.register(MASTER, topics("T", "U"), V1, "m")
    clock.advance(100_000)
    routes.register(OTHER, topics("T", "V"), V1, "o")
    if way == "goodbye":
        routes.unregister("C", MASTER.address, "broker-a", 0)
    elif way == "channel":
        assert routes.channel_closed("m") == [MASTER.address]
    else:
        assert routes.scan() == []
        clock.advance(20_001)
        assert routes.scan() == [MASTER.address]
    assert [data.broker_name for data in routes.route("T").queue_datas] == ["broker-b"]
    assert routes.route("U") is None
    assert routes.clusters() == {"C": ["broker-b"]}
    routes.channel_closed("o")
    assert (routes.brokers(), routes.clusters(), routes.topics()) == ({}, {}, [])


def test_a_master_that_leaves_its_slave_behind_keeps_the_route(routes):
    routes.register(MASTER, topics("T", "U"), V1, "m")
    routes.register(SLAVE, topics("T", "U"), V1, "s")
    routes.channel_closed("m")
    assert routes.route("T").broker_datas[0].broker_addrs == {1: SLAVE.address}


def test_signs_of_life_and_own_timeouts_count(routes, clock):
    brief = BrokerRegistration("C", "broker-a", 0, "10.0.0.1:1", timeout_ms=1000)
    routes.register(brief, topics("T", "U"), V1, "m")
    clock.advance(900)
    routes.refresh("C", "10.0.0.1:1")
    clock.advance(900)
    assert routes.scan() == []
    clock.advance(101)
    assert routes.scan() == ["10.0.0.1:1"]
    routes.refresh("C", "10.0.0.1:1")
    assert routes.data_version("C", "10.0.0.1:1") is None


def test_write_permission_can_be_taken_and_given(routes):
    routes.register(MASTER, topics("T", "U"), V1, "m")
    assert routes.wipe_write_perm("broker-a") == 2
    assert routes.route("T").queue_datas[0].perm == 4
    assert routes.add_write_perm("broker-a") == 2
    assert routes.route("T").queue_datas[0].perm == 6
    assert routes.wipe_write_perm("nobody") == 0


def test_a_lost_master_with_an_acting_one_takes_no_sends(routes):
    acting = {"enable_acting_master": True}
    routes.register(BrokerRegistration("C", "b", 0, "m:1", **acting), topics("T", "U"), V1, "m")
    routes.register(BrokerRegistration("C", "b", 1, "s:1", **acting), topics("T", "U"), V1, "s")
    routes.channel_closed("m")
    assert routes.route("T").queue_datas[0].perm == 4
    routes.register(BrokerRegistration("C", "b", 1, "s:1", **acting), topics("T", "New"), V2, "s")
    assert routes.route("New") is not None


def test_without_a_master_the_smallest_slave_speaks_for_topics(routes):
    says_so = {"enable_acting_master": False}
    second = BrokerRegistration("C", "broker-a", 2, "10.0.0.4:10911", **says_so)
    first = BrokerRegistration("C", "broker-a", 1, SLAVE.address, **says_so)
    routes.register(second, topics("T", "U"), V1, "s2")
    assert routes.route("T").broker_datas[0].broker_addrs == {2: second.address}
    routes.register(first, topics("T", "U", queues=8), V1, "s1")
    routes.register(second, topics("T", "New"), V2, "s2")
    assert routes.route("New") is None
    assert [(data.perm, data.read_queue_nums) for data in routes.route("T").queue_datas] == [(6, 8)]
    acting = BrokerRegistration("C", "b", 1, "s:1", enable_acting_master=True)
    routes.register(acting, topics("V", "W"), V1, "s")
    assert routes.route("V").queue_datas[0].perm == 4
    routes.register(BrokerRegistration("C", "b", 0, "s:1", enable_acting_master=True), topics("V", "W"), V1, "s")
    assert routes.route("V").queue_datas[0].perm == 6
    assert routes.route("V").broker_datas[0].broker_addrs == {0: "s:1"}


def test_a_slave_that_becomes_master_registers_in_full_first(routes):
    slave = BrokerRegistration("C", "b", 1, "s:1", enable_acting_master=True)
    master = BrokerRegistration("C", "b", 0, "s:1", enable_acting_master=True)
    routes.register(slave, topics("T", "U"), V1, "s")
    assert routes.register(master, topics("T"), V2, "s") is None
    assert routes.route("T").broker_datas[0].broker_addrs == {1: "s:1"}
    routes.register(master, topics("T", "U"), V2, "s")
    assert [routes.route(name).queue_datas[0].perm for name in ("T", "U")] == [6, 6]
    elsewhere = BrokerRegistration("C", "b", 0, "s:2")
    assert routes.register(elsewhere, topics("T"), V2, "s2") == RegistrationResult()
    assert routes.route("T").broker_datas[0].broker_addrs == {0: "s:2"}


def test_a_broker_refused_an_id_is_unknown_from_then_on(routes):
    routes.register(MASTER, topics("T", "U"), DataVersion(5, 1, 1), "m")
    routes.register(SLAVE, topics("T", "U"), V1, "s")
    routes.register(SLAVE._replace(broker_id=0), topics("T", "U"), V1, "s")
    assert routes.members("broker-a").broker_addrs == {0: MASTER.address}
    assert routes.data_version("C", SLAVE.address) is None
    assert routes.data_version("C", MASTER.address) is not None


def test_topics_by_hand(routes):
    routes.register(MASTER, topics("T", "U"), V1, "m")
    routes.register(OTHER, topics("T", "V"), V1, "o")
    routes.register_topic("Hand", [QueueData("broker-a", 1, 1, 6), QueueData("nobody", 1, 1, 6)])
    assert [data.broker_name for data in routes.route("Hand").queue_datas] == ["broker-a"]
    routes.delete_topic("Hand", "C")
    routes.delete_topic("T")
    routes.delete_topic("unknown")
    assert routes.route("Hand") is None
    assert routes.route("T") is None


def test_zones_leave_out_brokers_elsewhere(routes):
    routes.register(BrokerRegistration("C", "a", 0, "a:1", zone_name="East"), topics("T", "U"), V1, 1)
    routes.register(BrokerRegistration("C", "b", 0, "b:1", zone_name="west"), topics("T", "U"), V1, 2)
    assert [data.broker_name for data in routes.route("T", "east").broker_datas] == ["a"]
    assert routes.route("T", "north").broker_datas == []
    assert len(routes.route("T").broker_datas) == 2


def test_the_end_of_a_broker_costs_what_its_own_topics_cost(routes):
    routes.register(MASTER, topics("T", "U"), V1, "ch1")
    routes.register(OTHER, topics("T", "V"), V1, "ch2")

    class Unwalked(dict):
        def __iter__(self):
            raise AssertionError("the code iterates over the topics of all brokers")

        keys = values = items = __iter__

    routes._topics = Unwalked(routes._topics)
    assert routes.wipe_write_perm("broker-b") == 2
    assert routes.channel_closed("ch2") == [OTHER.address]
    routes._topics = dict(dict.items(routes._topics))
    assert sorted(routes.topics()) == ["T", "U"]
    routes.register(OTHER, topics("T", "V"), V1, "ch2")
    routes.delete_topic("T")
    routes.unregister("C", OTHER.address, "broker-b", 0)
    routes.unregister("C", MASTER.address, "broker-a", 0)
    assert routes.topics() == [] and not routes._topics_of


def test_key_values_are_bounded(monkeypatch):
    monkeypatch.setattr(kv_config, "CHARACTERS_MAX", 20)
    table = kv_config.KVConfigManager()
    table.put("n", "k", "v" * 10)
    table.put("n", "k", "v" * 18)
    for namespace, key in (("n", "l"), ("m", "k")):
        with pytest.raises(ValueError, match="20 characters"):
            table.put(namespace, key, "w")
    again = kv_config.KVConfigManager()
    again.load(b"".join(table.pieces()), "file")
    with pytest.raises(ValueError, match="20 characters"):
        again.put("n", "l", "w")
    again.delete("n", "k")
    again.delete("n", "k")
    assert again.namespace("n") == {}
    again.put("m", "k", "w" * 17)
    with pytest.raises(ValueError, match="20 characters"):
        again.put("m", "k", "w" * 18)


def many(count: int = 1000) -> dict[str, TopicConfig]:
    return topics(*(f"T{number}" for number in range(count)))


def test_many_topics_are_entered_and_removed_in_pieces(routes):
    """Before the fix, a broker with 100,000 topics blocked the name server for 0.6 s on joining, 0.4 s on leaving."""
    told = []
    routes.on_left = lambda: told.append(len(routes.topics()))
    counts = [0]
    for _ in routes.register_steps(MASTER, many(), V1, "ch1"):
        counts.append(len(routes.topics()))
    counts.append(len(routes.topics()))
    assert counts == [0, 256, 512, 768, 1000]
    assert routes.data_version("C", MASTER.address) == V1
    assert routes.channel_closed("ch1") == [MASTER.address]
    assert told == [1000 - 256]
    assert (routes.route("T0"), routes.route("T999"), routes.brokers()) == (None, None, {})
    counts = []
    while routes.drop_left():
        counts.append(len(routes.topics()))
    assert (counts, routes.topics()) == ([488, 232], [])


def test_a_broker_that_leaves_while_its_topics_are_entered(routes):
    steps = routes.register_steps(MASTER, many(), V1, "ch1")
    next(steps)
    routes.channel_closed("ch1")
    assert list(steps) == []
    while routes.drop_left():
        pass
    assert routes.topics() == []


def test_a_broker_that_comes_again_before_its_topics_are_removed(routes):
    routes.register(MASTER, many(), V1, "ch1")
    routes.channel_closed("ch1")
    routes.register(MASTER, topics("T", "U"), V2, "ch2")
    assert sorted(routes.topics()) == ["T", "U"]
    assert not routes.drop_left()


LIMITS = RouteLimits(100, 100, 100_000)


@pytest.mark.parametrize("change", [{"broker_id": 0}, {"broker_name": "new"}, {"cluster": "D"}])
def test_an_unregistration_that_comes_late_leaves_the_newer_registration(change, routes, clock):
    """Before the fix, the newer registration lost its lifetime, and stayed in the routes for ever."""
    newer = SLAVE._replace(enable_acting_master=True, **change)
    routes.register(SLAVE._replace(enable_acting_master=True), topics("T", "U"), V1, "old")
    routes.register(newer, topics("T", "U"), V2, "new")
    routes.unregister(SLAVE.cluster, SLAVE.address, SLAVE.broker_name, SLAVE.broker_id)
    assert [data.broker_addrs for data in routes.route("T").broker_datas] == [{newer.broker_id: SLAVE.address}]
    assert routes.channel_closed("new") == [SLAVE.address]
    assert (routes.route("T"), routes.brokers(), routes.clusters()) == (None, {}, {})


@pytest.mark.parametrize("count", [2, 3000])
@pytest.mark.parametrize("change", [{"broker_name": "new"}, {"cluster": "D"}, {"broker_name": "new", "cluster": "D"}])
def test_a_broker_with_another_name_or_cluster_replaces_the_one_at_its_address(change, count, routes, clock):
    routes.register(MASTER, topics(*map(str, range(count))), V1, "half open")
    newer = MASTER._replace(**change)
    routes.register(newer, topics("0", "1"), V1, "new")
    while routes.drop_left():
        pass
    assert routes.clusters() == {newer.cluster: [newer.broker_name]}
    assert list(routes.brokers()) == [newer.broker_name]
    assert sorted(routes.topics()) == ["0", "1"]
    assert [data.broker_name for data in routes.route("0").queue_datas] == [newer.broker_name]
    assert routes.channel_closed("half open") == []
    clock.advance(119_000)
    routes.register(newer, topics("0", "1"), V1, "new")
    clock.advance(119_000)
    assert routes.scan() == []
    assert routes.data_version(newer.cluster, newer.address) == V1
    assert routes.data_version("other", newer.address) is None


def test_a_broker_name_is_in_one_cluster(routes, clock):
    """A second broker of the name in another cluster is refused while the first one lives; routes do not alternate."""
    routes.register(MASTER, topics("T", "U"), V1, "first")
    second = BrokerRegistration("D", "broker-a", 0, "10.0.0.9:10911")
    why = routes.refusal(second, topics("T", "U"), "second", LIMITS)
    assert why == "the broker name broker-a belongs to a live broker of the cluster C"
    assert routes.refusal(MASTER, topics("T"), "first", LIMITS) == ""
    assert routes.refusal(MASTER._replace(cluster="D"), topics("T"), "first", LIMITS) == ""  # the same one, renamed
    routes.channel_closed("first")
    assert routes.refusal(second, topics("T", "U"), "second", LIMITS) == ""
    routes.register(second, topics("T", "U"), V1, "second")
    assert routes.clusters() == {"D": ["broker-a"]}


def test_the_member_with_the_smallest_id_says_the_cluster_of_its_group(routes):
    """A cluster gets another name while its brokers run: one after the other restarts with it."""
    routes.register(MASTER, topics("T", "U"), V1, "m")
    routes.register(SLAVE, topics("T", "U"), V1, "s")
    routes.channel_closed("m")
    renamed = MASTER._replace(cluster="D")
    assert routes.refusal(renamed, topics("T"), "m2", LIMITS) == ""
    routes.register(renamed, topics("T", "U"), V2, "m2")
    assert routes.register(SLAVE, topics("T", "U"), V1, "s").master_address == MASTER.address
    assert routes.clusters() == {"D": ["broker-a"]}
    assert routes.members("broker-a").broker_addrs == {0: MASTER.address, 1: SLAVE.address}
    assert routes.members("broker-a").cluster == "D"
    routes.channel_closed("s")
    routes.channel_closed("m2")
    assert (routes.clusters(), routes.brokers()) == ({}, {})


def test_permissions_of_topics_come_back_with_the_permission_to_write(routes):
    perms = {"both": 6, "read": 4, "write": 2}
    table = {name: TopicConfig(name, 4, 4, perm) for name, perm in perms.items()}
    routes.register(MASTER, table, V1, "ch")

    def seen() -> dict[str, int]:
        return {name: routes.route(name).queue_datas[0].perm for name in routes.topics()}

    assert routes.wipe_write_perm("broker-a") == 3
    assert seen() == {"both": 4, "read": 4, "write": 0}
    routes.register(MASTER, table | topics("made later"), V2, "ch")
    routes.register_topic("by hand", [QueueData("broker-a", 1, 1, 6)])
    assert seen() == {"both": 4, "read": 4, "write": 0, "made later": 4, "by hand": 4}
    routes.register(OTHER, topics("both", "T"), V1, "other")
    assert [data.perm for data in routes.route("both").queue_datas] == [4, 6]
    assert routes.add_write_perm("broker-a") == 5
    assert seen() == {"both": 6, "read": 4, "write": 2, "made later": 6, "by hand": 6, "T": 6}
    assert (routes.wipe_write_perm("absent"), routes.add_write_perm("absent")) == (0, 0)
    routes.wipe_write_perm("broker-a")
    routes.channel_closed("ch")
    routes.register(MASTER, table, V2, "ch")  # a broker that comes again is as it registers
    assert seen()["both"] == 6


def test_the_permission_to_write_does_not_come_back_to_a_group_without_a_master(routes):
    routes.register(MASTER._replace(enable_acting_master=True), topics("T", "U"), V1, "m")
    routes.register(SLAVE._replace(enable_acting_master=True), topics("T", "U"), V1, "s")
    routes.wipe_write_perm("broker-a")
    routes.channel_closed("m")
    routes.add_write_perm("broker-a")
    assert routes.route("T").queue_datas[0].perm == 4


def test_a_broker_that_lost_its_id_to_another_address_is_unknown(routes):
    """Each registration belongs to a member of a group; what has lost its place does not count as a broker."""
    routes.register(MASTER, topics("T", "U"), V1, "old")
    moved = MASTER._replace(address="10.0.0.7:10911")
    routes.register(moved, topics("T", "U"), V2, "new")
    assert routes.data_version("C", MASTER.address) is None
    assert routes.channel_closed("old") == []
    assert routes.members("broker-a").broker_addrs == {0: moved.address}


# -- a group without master --------------------------------------------------------------------------------------------

ACTING_MASTER = MASTER._replace(enable_acting_master=True)
FIRST = SLAVE._replace(enable_acting_master=True)
SECOND = FIRST._replace(broker_id=2, address="10.0.0.4:10911", ha_address="10.0.0.4:10912")
MEMBERS = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"


def acting_routes(clock: ManualClock, supports: bool = True) -> RouteInfoManager:
    routes = RouteInfoManager(clock.monotonic, supports)
    for broker in (ACTING_MASTER, FIRST, SECOND):
        routes.register(broker, topics("T", MEMBERS), V1, broker.address)
    return routes


def test_the_smallest_slave_is_shown_as_the_master(clock):
    routes = acting_routes(clock)
    everybody = {0: MASTER.address, 1: FIRST.address, 2: SECOND.address}
    assert routes.route("T").broker_datas[0].broker_addrs == everybody
    assert routes.route("T").queue_datas[0].perm == 6
    routes.channel_closed(MASTER.address)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: FIRST.address, 2: SECOND.address}
    assert routes.route("T").queue_datas[0].perm == 4
    real = {1: FIRST.address, 2: SECOND.address}
    assert routes.route(MEMBERS).broker_datas[0].broker_addrs == real
    assert routes.members("broker-a").broker_addrs == real
    assert routes.brokers()["broker-a"].broker_addrs == real
    routes.channel_closed(FIRST.address)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: SECOND.address}
    routes.register(ACTING_MASTER, topics("T", MEMBERS), V1, "new")
    assert routes.route("T").broker_datas[0].broker_addrs == {0: MASTER.address, 2: SECOND.address}
    assert routes.route("T").queue_datas[0].perm == 6


def test_no_slave_is_shown_as_the_master_unless_both_sides_want_it(clock):
    routes = acting_routes(clock, supports=False)
    routes.channel_closed(MASTER.address)
    assert routes.route("T").broker_datas[0].broker_addrs == {1: FIRST.address, 2: SECOND.address}
    routes = RouteInfoManager(clock.monotonic, True)
    for broker in (MASTER, SLAVE._replace(enable_acting_master=False)):
        routes.register(broker, topics("T", "U"), V1, broker.address)
    routes.channel_closed(MASTER.address)
    assert routes.route("T").broker_datas[0].broker_addrs == {1: SLAVE.address}


def test_who_is_told_of_a_new_smallest_id(clock):
    routes, told = acting_routes(clock), []
    routes.on_min_id = told.append
    routes.channel_closed(SECOND.address)
    assert told == [], "the smallest one is still there"
    routes.channel_closed(MASTER.address)
    assert told.pop() == ("broker-a", 1, FIRST.address, MASTER.address, "", (FIRST.address,))
    routes.register(SECOND, topics("T", MEMBERS), V1, "new")
    assert told == []
    routes.register(ACTING_MASTER, topics("T", MEMBERS), V1, "new")
    others = FIRST.address, SECOND.address
    assert told.pop() == ("broker-a", 0, MASTER.address, "", MASTER.ha_address, others)
    routes.register(ACTING_MASTER, topics("T", MEMBERS), V1, "new")
    assert told == [], "nothing new"
    for address in (MASTER.address, *others):
        routes.unregister("C", address, "broker-a", {MASTER.address: 0, FIRST.address: 1, SECOND.address: 2}[address])
    assert [change.min_broker_id for change in told] == [1, 2], "the last one leaves nobody to tell"


def test_groups_without_acting_master_are_not_told(routes):
    told = []
    routes.on_min_id = told.append
    for broker in (MASTER, SLAVE):
        routes.register(broker, topics("T", "U"), V1, broker.address)
    routes.channel_closed(MASTER.address)
    assert told == []


def test_a_topic_that_can_be_written_has_no_acting_master(clock):
    """Producers would take the slave for a master. Such a topic was changed by an administrator."""
    routes = acting_routes(clock)
    routes.channel_closed(MASTER.address)
    routes.register_topic("T", [QueueData("broker-a", 4, 4, 6, 0)])
    assert routes.route("T").broker_datas[0].broker_addrs == {1: FIRST.address, 2: SECOND.address}
