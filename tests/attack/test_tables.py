"""Every table of a server that a client can fill is bounded, and no account fills it for the others.

The test finds the tables in the source: attributes that a constructor sets to an empty container. A new one must be
entered here with the reason why no client fills it for the others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from tests.brokers import Cluster, run
from tests.tables import Tables

from rucola.broker import waiting_requests
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.processor import client_manage
from rucola.broker.shares import Shares
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop

SOURCE = Path(__file__).parents[2] / "src" / "rucola"
PACKAGES = ("broker", "controller", "remoting", "namesrv", "grpc", "http2", "proxy")
CONTAINERS = {"dict", "OrderedDict", "Counter", "defaultdict", "set", "deque", "list"}

SHARE = "each account has a share (Shares)"
REGISTERED = "by the registrations of clients, of which each account has a share"
NONE = "clients do not fill it: one entry per option, listener, level, task or queue of the broker itself"
NAMES = "one entry per topic, group or queue that exists; accounts create at most autoCreatePerAccountMax of them"
CONNECTION = "by the connection: ends with it, has a limit for each, and connections are limited by address"
WAITING = "by the requests that wait: a limit for all, in which each connection has a share"
WAITING_SENDS = "by the sends that wait for the disk or slaves, together 10,000: no longer than a sync, or slaveTimeout"
WAITING_PULLS = "by the requests that wait for messages: 25,000 for each account, 4,096 for each connection"
BYTES = "by the messages of the store: who may send them is bounded by the disk"
CACHE = "a cache with a maximum; an entry that is missing costs time only"
JOURNAL = "by the halves of the journal, 1 MiB each; what has no room there is stored at once"
ADMINISTRATORS = "administrators fill it"
BROKERS = "with accounts, only administrators' accounts register: brokersMax, topicsMax"
GROUPS = "with accounts, only administrators' accounts register: groupsMax, 64 brokers for each"
HEARTBEATS = "with accounts, only administrators' accounts send heartbeats: brokersMax"
ACCOUNTS = "one entry per account"
CALLS = "by the open calls: 4,096 for each connection, 131,072 for all, in which each connection has a share"
SESSIONS = "by the clients of the gRPC port, at most 16,384; those that are silent give way"
OWN = "a client's part: its own connections and requests"
LITE_CLIENTS = "by the clients of lite topics: 65,536, of which each account has a share (Shares)"
LITE_LEASES = "one entry per batch of a lite topic in flight: 1,000,000, 500,000 of one group; each may have 1,024"

TABLES = {
    "broker/acl/auth_manager:AuthManager._users": ADMINISTRATORS,
    "broker/acl/auth_manager:AuthManager._policies": ADMINISTRATORS,
    "broker/acl/freshness:Freshness._ahead": ACCOUNTS,
    "broker/acl/freshness:Freshness._floors": ACCOUNTS,
    "broker/acl/guard:AccessGuard._reading": CONNECTION,
    "broker/acl/lite_name_quota:LiteNameQuota._left": ACCOUNTS,
    "broker/acl/name_quota:NameQuota._made": ACCOUNTS,
    "broker/lite/life:LiteLife._looked_to": NAMES,
    "broker/lite/life:LiteLife._unknown": "by lite topics without a store time, which clients do not set",
    "broker/lite/offset_files:OffsetFiles._new_groups": NAMES,
    "broker/lite/offsets:LiteOffsets._followed": "the master's table, on a slave",
    "broker/lite/offsets:LiteOffsets._groups": NAMES,
    "broker/lite/offsets:LiteOffsets._numbers": NAMES,
    "broker/lite/offsets:LiteOffsets._of_parent": NAMES,
    "broker/offset/consumer_offset_manager:ConsumerOffsetManager._exported": "at a clean stop, 100,000 at most",
    "broker/acl/replay:NonceTable._sessions": SHARE,
    "broker/acl/senders:AccountSenders._names": ACCOUNTS,
    "broker/broker:Broker._listeners": NONE,
    "broker/broker_stats:BrokerStats._samples": NAMES,
    "broker/checked_topics:CheckedTopics._checked": NAMES,
    "broker/client/consumer_manager:ConsumerManager._groups": REGISTERED,
    "broker/client/consumer_manager:ConsumerManager._groups_of": REGISTERED,
    "broker/client/consumer_manager:ConsumerManager._listeners": NONE,
    "broker/client/group_changes:GroupChanges._rounds": REGISTERED,
    "broker/client/producer_manager:ProducerManager._groups": REGISTERED,
    "broker/client/producer_manager:ProducerManager._connections": REGISTERED,
    "broker/client/producer_manager:ProducerManager._channels": REGISTERED,
    "broker/client/rebalance_lock:RebalanceLockManager._locks": SHARE,
    "broker/client/rebalance_lock:RebalanceLockManager._counts": SHARE,
    "broker/client/registrations:Registrations._ids": SHARE,
    "broker/cold_data_flow:ColdDataFlow.thresholds": ADMINISTRATORS,
    "broker/cold_data_flow:ColdDataFlow._accounts": NAMES,
    "broker/cold_reads:ColdReads._running": WAITING_PULLS,
    "broker/cold_reads:ColdReads._served": WAITING_PULLS,
    "broker/config_files:ConfigFiles._unread": NONE,
    "broker/filter/consumer_filter_manager:ConsumerFilterManager._table": REGISTERED,
    "broker/filter/consumer_filter_manager:ConsumerFilterManager._compiled": REGISTERED,
    "broker/filter/filtered_read:_Found.views": CONNECTION,
    "broker/filter/sql_expressions:SqlExpressions._kept": CACHE,
    "broker/filter/sql_expressions:SqlExpressions._resuming": SHARE,
    "broker/flush_waiters:FlushWaiters._waiting": WAITING_SENDS,
    "broker/ha/controller_session:ControllerSession._tasks": NONE,
    "broker/ha/controller_session:ControllerSession._works": NONE,
    "broker/ha/master:HaServer.slaves": "addresses that the operator has listed: 64 connections",
    "broker/ha/pre_online:PreOnline._asked": "one number per slave of the group",
    "broker/ha/replica:Replica._topics": "by the master's topics; a replica has no clients",
    "broker/ha/replica:Replica._written": "one entry per table of the master",
    "broker/ha/slave:Slave._tasks": NONE,
    "broker/ha/slave_access:SlaveAccess._networks": NONE,
    "broker/ha/slave_tables:SlaveTables._bodies": "one entry per table of the master",
    "broker/ha/slave_tables:SlaveTables._failed": "one entry per table of the master",
    "broker/ha/slave_tables:SlaveTables._gone": "by the master's topics",
    "broker/ha/slave_tables:SlaveTables._vanished": "by the master's topics",
    "broker/lite/control:LiteControlProcessor._changing": WAITING,
    "broker/lite/delivery:LiteDelivery._periodic": NONE,
    "broker/lite/delivery:LiteDelivery._steps": LITE_CLIENTS,
    "broker/lite/event_dispatcher:LiteEventDispatcher._missed": NAMES,
    "broker/lite/event_dispatcher:LiteEventDispatcher._scans": NAMES,
    "broker/lite/event_dispatcher:LiteEventDispatcher.woken": WAITING_PULLS,
    "broker/lite/hold:LiteHold._pops": WAITING_PULLS,
    "broker/lite/reading_group:LiteClient.attempts": "the last 64 pops of a client",
    "broker/lite/reading_group:LiteClient.events": SHARE,
    "broker/lite/reading_group:LiteClient.names": SHARE,
    "broker/lite/reading_group:LiteClient.taken": SHARE,
    "broker/lite/reading_group:LiteClient.waiters": WAITING_PULLS,
    "broker/lite/reading_group:ReadingGroup.blocks": LITE_LEASES,
    "broker/lite/reading_group:ReadingGroup.clients": LITE_CLIENTS,
    "broker/lite/reading_group:ReadingGroup.holders": SHARE,
    "broker/lite/reading_group:ReadingGroup.moved": "one entry per lite topic that exists, until the next pop",
    "broker/lite/reading_group:ReadingGroup.owners": SHARE,
    "broker/lite/reading_group:ReadingGroup.ready": "65,536 for each group; a scan finds the others",
    "broker/lite/reading_group:ReadingGroup.waiting": LITE_CLIENTS,
    "broker/lite/reading_group:ReadingGroups._groups": NAMES,
    "broker/lite/reading_group:ReadingGroups._of_parent": NAMES,
    "broker/lite/subscriptions:LiteSubscriptions.notices": "sent when the request that causes them ends",
    "broker/offset/consumer_offset_manager:ConsumerOffsetManager._followed": "the master's table, on a slave",
    "broker/offset/consumer_offset_manager:ConsumerOffsetManager._listeners": NONE,
    "broker/offset/consumer_offset_manager:ConsumerOffsetManager.table": NAMES,
    "broker/offset/consumer_offset_manager:ConsumerOffsetManager.pulled": NAMES,
    "broker/offset/offset_resets:OffsetResets.table": ADMINISTRATORS,
    "broker/outer_api:BrokerOuterApi._answers": NONE,
    "broker/outer_api:BrokerOuterApi._failing": NONE,
    "broker/outer_api:BrokerOuterApi._missed": NONE,
    "broker/pop/ack_buffer:AckBuffer._collecting": JOURNAL,
    "broker/pop/ack_buffer:AckBuffer._storing": JOURNAL,
    "broker/pop/hold:_Waiting.heaps": WAITING_PULLS,
    "broker/pop/hold:PopHold._queues": WAITING_PULLS,
    "broker/pop/hold:PopHold._retry_queues": WAITING_PULLS,
    "broker/pop/order_info:OrderInfoManager._attempts": NAMES,
    "broker/pop/order_info:OrderInfoManager.table": NAMES,
    "broker/pop/order_locks:OrderLocks._timers": NAMES,
    "broker/pop/pop_offsets:PopOffsets._popped": NAMES,
    "broker/pop/pop_offsets:PopOffsets._marks": BYTES,
    "broker/pop/receipt:PopInfo._starts": OWN,
    "broker/pop/receipt:PopInfo._offsets": OWN,
    "broker/pop/receipt:PopInfo._order_counts": OWN,
    "broker/pop/request_age:RequestAges._least_ms": CONNECTION,
    "broker/pop/request_mode:RequestModeManager.table": ADMINISTRATORS,
    "broker/pop/revive_queue:ReviveQueue.finished": BYTES,
    "broker/pop/revive_queue:ReviveQueue._waiting": BYTES,
    "broker/pop/revive_queue:ReviveQueue._early": BYTES,
    "broker/pop/revive_service:ReviveService._queues": NONE,
    "broker/pop/revive_service:ReviveService._copies": BYTES,
    "broker/pop/revive_service:ReviveService._undecided": NONE,
    "broker/pop/revive_service:ReviveService._done": BYTES,
    "broker/processor/whole_table:WholeTable._waiting": ADMINISTRATORS,
    "broker/pull/admission:PullAdmissions._kept": CACHE,
    "broker/pull/request:PullRequestHold._due": WAITING_PULLS,
    "broker/pull/request:PullRequestHold._queues": WAITING_PULLS,
    "broker/registration:Registration._under_way": NONE,
    "broker/running:RunningBroker._periodic": NONE,
    "broker/running_services:RunningServices.refusals": "one entry per request code",
    "broker/schedule/schedule_message_service:ScheduleMessageService._offsets": NONE,
    "broker/schedule/schedule_message_service:ScheduleMessageService._safe": NONE,
    "broker/schedule/schedule_message_service:ScheduleMessageService._written": NONE,
    "broker/schedule/schedule_message_service:ScheduleMessageService._unsafe": BYTES,
    "broker/shares:Shares._of": ACCOUNTS,
    "broker/subscription/subscription_group_manager:SubscriptionGroupManager._listeners": NONE,
    "broker/subscription/subscription_group_manager:SubscriptionGroupManager.forbidden": ADMINISTRATORS,
    "broker/timer/time_step:TimeStep.ready": BYTES,
    "broker/timer/time_step:TimeStep.withdrawn": BYTES,
    "broker/timer/time_step:TimeStep.recalls": BYTES,
    "broker/topic/topic_config_manager:TopicConfigManager._listeners": NONE,
    "broker/topic/topic_config_manager:TopicConfigManager._registering": NAMES,
    "broker/topic_queues:TopicQueues._kept": CACHE,
    "broker/topic_queues:TopicQueues._asked": CACHE,
    "broker/transaction/half_messages:HalfMessages.pending": BYTES,
    "broker/transaction/half_messages:HalfMessages._identities": BYTES,
    "broker/transaction/half_messages:HalfMessages._by_offset": BYTES,
    "broker/transaction/half_messages:HalfMessages._known": BYTES,
    "broker/transaction/half_messages:HalfMessages._unwritten": BYTES,
    "broker/transaction/half_messages:HalfMessages._ops": BYTES,
    "broker/transaction/half_messages:HalfMessages._marks": BYTES,
    "broker/transaction/transactional_message_service:TransactionalMessageService._named": BYTES,
    "broker/transaction/transactional_message_service:TransactionalMessageService._outcomes": CACHE,
    "broker/waiting_requests:WaitingRequests._connections": CONNECTION,
    "broker/waiting_requests:WaitingRequests._accounts": CONNECTION,
    "broker/waiting_requests:Deadlines._moments": WAITING_PULLS,
    "broker/waiting_requests:Deadlines._order": WAITING_PULLS,
    "remoting/outbound:Outbound._parts": CONNECTION,
    "remoting/channel:Channel.attributes": CONNECTION,
    "remoting/client:RemotingClient.processors": OWN,
    "remoting/client:RemotingClient._connections": OWN,
    "remoting/client:RemotingClient.tasks": OWN,
    "remoting/client:ClientConnection._parts": OWN,
    "remoting/fairness/connection_count:ConnectionCount._by_address": CONNECTION,
    "remoting/fairness/postponed_reads:_Group.waiting": CONNECTION,
    "remoting/fairness/large_frames:LargeFrames._frames": CONNECTION,
    "remoting/fairness/unsent_bytes:UnsentBytes._sizes": CONNECTION,
    "remoting/processors:ProcessorTable._processors": NONE,
    "remoting/processors:ProcessorTable._makers": NONE,
    "remoting/processors:ProcessorTable._waiting": WAITING,
    "remoting/processors:ProcessorTable._waiting_of": WAITING,
    "remoting/response_future:ResponseTable.waiting": OWN,
    "remoting/server:RemotingServer.channels": CONNECTION,
    "remoting/server:RemotingServer._ended": CONNECTION,
    "remoting/peer_log:AddressLog._lines": "256 addresses; all others share one line",
    "remoting/tls_listener:TlsListener._shaking": CONNECTION,
    "remoting/tls_listener:TlsListener._tasks": CONNECTION,
    "remoting/fairness/resumed:Resumed._held": WAITING,
    "controller/controller:Controller._elections": GROUPS,
    "controller/controller:Controller._works": NONE,
    "controller/group_store:GroupStore._damaged": GROUPS,
    "controller/group_store:GroupStore._doubtful": GROUPS,
    "controller/group_store:GroupStore._known": GROUPS,
    "controller/group_store:GroupStore._locks": WAITING,
    "controller/group_store:GroupStore._users": WAITING,
    "controller/heartbeat:BrokerHeartbeatManager._of_channel": HEARTBEATS,
    "controller/heartbeat:BrokerHeartbeatManager._table": HEARTBEATS,
    "namesrv/kv_config:KVConfigManager._tables": ADMINISTRATORS,
    "namesrv/route_info:RouteInfoManager._groups": BROKERS,
    "namesrv/route_info:RouteInfoManager._clusters": BROKERS,
    "namesrv/route_info:RouteInfoManager._live": BROKERS,
    "namesrv/route_info:RouteInfoManager._topics": BROKERS,
    "namesrv/route_info:RouteInfoManager._topics_of": BROKERS,
    "namesrv/route_info:RouteInfoManager._left": BROKERS,
    "broker/pop/hold:PopHold._attempts": WAITING_PULLS,
    "broker/pop/hold:PopHold._pops": WAITING_PULLS,
    "remoting/memory_link:MemoryLink._arrived": CONNECTION,
    "remoting/memory_link:MemoryLink._tasks": CONNECTION,
    "remoting/memory_link:MemoryLink._waiting": CONNECTION,
    "grpc/connection:GrpcConnection._calls": CALLS,
    "grpc/connection:GrpcConnection._known": CACHE,
    "grpc/connection:GrpcConnection._talks": CALLS,
    "grpc/health:HealthService._watches": CALLS,
    "grpc/schema:Package._classes": NONE,
    "grpc/server:GrpcServer._tasks": CALLS,
    "grpc/server:GrpcServer.connections": CONNECTION,
    "grpc/server:GrpcServer.ends": NONE,
    "grpc/stream_watch:StreamWatch._begun": CALLS,
    "grpc/stream_watch:StreamWatch._stalled": CALLS,
    "grpc/time_limits:TimeLimits._greeting": CONNECTION,
    "grpc/time_limits:TimeLimits._pending": CONNECTION,
    "grpc/time_limits:TimeLimits._round": CONNECTION,
    "grpc/time_limits:TimeLimits._silent": CONNECTION,
    "grpc/unwritten:UnwrittenAnswers._answers": CALLS,
    "http2/_exchange_cy:StreamExchange._chunks": CALLS,
    "http2/_exchange_cy:StreamExchange._drained": CALLS,
    "http2/_exchange_cy:StreamExchange._living": CALLS,
    "http2/_exchange_cy:StreamExchange._waiting": CALLS,
    "proxy/account_access:AccountAccess._good": CACHE,
    "proxy/acknowledge:Acknowledgements._checked": CACHE,
    "proxy/brokers:WritableQueues._ends": BROKERS,
    "proxy/brokers:WritableQueues._made": BROKERS,
    "proxy/brokers:WritableQueues._names": BROKERS,
    "proxy/cluster:ClusterBrokers._avoided": BROKERS,
    "proxy/cluster:ClusterBrokers._closing": SESSIONS,
    "proxy/cluster:ClusterBrokers._masters": BROKERS,
    "proxy/cluster_access:_HalfMessages._senders": SHARE,
    "proxy/cluster_access:_HalfMessages._sent": ACCOUNTS,
    "proxy/door:GrpcDoor._tasks": SESSIONS,
    "proxy/lite_subscriptions:DoorSubscriptions._known": SESSIONS,
    "proxy/lite_subscriptions:_Rate._counts": SESSIONS,
    "proxy/local:LocalBrokers._views": NAMES,
    "proxy/local:LocalLink._full": SESSIONS,
    "proxy/local:_Shared._free": CACHE,
    "proxy/outcomes:Outcomes._codes": NONE,
    "proxy/outcomes:Outcomes._errors": NONE,
    "proxy/receive:Receives._polls": CALLS,
    "proxy/receive:Receives._tasks": CALLS,
    "proxy/refreshed:Refreshed._entries": CACHE,
    "proxy/refreshed:_LookUp._waiting": CALLS,
    "proxy/refreshed:Refreshed._look_ups": CACHE,
    "proxy/refreshed:Refreshed._unknown": CACHE,
    "proxy/renewals:Renewals._held": BYTES,
    "proxy/sessions:ClientSession.links": SESSIONS,
    "proxy/sessions:Sessions._sessions": SESSIONS,
    "proxy/telemetry:Telemetry._asked": ADMINISTRATORS,
    "proxy/telemetry:Telemetry._left": SESSIONS,
    "proxy/telemetry:Telemetry._tasks": CALLS,
    "proxy/telemetry:_Stream._settings": CALLS,
    "proxy/transactions:Transactions._places": CACHE,
}


def found() -> Iterator[str]:
    """``module:Class.attribute`` of each empty container that a constructor makes."""
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            module = path.relative_to(SOURCE).with_suffix("").as_posix()
            for made in ast.walk(ast.parse(path.read_text())):
                if isinstance(made, ast.ClassDef):
                    for part in made.body:
                        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                            yield from (f"{module}:{made.name}.{name}" for name in containers(part))


def containers(constructor: ast.FunctionDef) -> Iterator[str]:
    for line in ast.walk(constructor):
        if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None or not is_empty(line.value):
            continue
        for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
            if isinstance(target, ast.Attribute):
                yield target.attr


def is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, (ast.List, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Call) and not value.args:
        made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return isinstance(made, ast.Name) and made.id in CONTAINERS
    return False


def test_each_table_has_a_reason_why_no_account_fills_it() -> None:
    tables = set(found())
    assert len(tables) > 80, "the search finds tables"
    assert sorted(tables - set(TABLES)) == [], "enter new tables, and who may fill them"
    assert sorted(set(TABLES) - tables) == [], "these are gone"


def test_filters_of_topics_that_do_not_exist_end_with_their_consumers() -> None:
    """A consumer may subscribe to any name, with an SQL filter. Filters without consumers are kept for a day."""
    tables = Tables(lambda _: None)
    filters = ConsumerFilterManager(tables.keep, lambda: 1, lambda topic: topic == "there")
    for number in range(20):
        wanted = [SubscriptionData(f"none{number}", "a > 1", sub_version=number, expression_type="SQL92")]
        filters.register("g", [*wanted, SubscriptionData("there", "a > 1", sub_version=1, expression_type="SQL92")])
        assert filters.get(f"none{number}", "g") is not None, "the topic may be created soon"
    assert len(filters._compiled) == 2
    filters.unregister("g")
    filters.persist()
    assert (set(filters._table), set(filters._compiled)) == ({"there"}, {("there", "g")})


class WaitingRequest:
    def __init__(self, channel: str) -> None:
        self.channel, self.deadline_s = channel, 1.0


def test_one_account_does_not_take_the_places_of_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_requests, "ACCOUNT_MAX", 3)
    accounts = {"a1": "a", "a2": "a", "b1": "b"}
    clock = ManualClock()
    loop = ManualLoop(clock)
    waiting: Any = waiting_requests.WaitingRequests(
        clock.monotonic,
        loop.call_later,
        lambda _: None,
        lambda channel: accounts[cast(Any, channel)],
    )
    one, two, three, four, five, six, seven = (
        WaitingRequest(channel) for channel in ("a1", "a2", "a1", "a1", "b1", "a1", "a2")
    )
    assert [waiting.add(one), waiting.add(two), waiting.add(three)] == [True] * 3
    assert not waiting.add(seven) and not waiting.add(four)
    assert waiting.add(five), "another account"
    accounts["a1"] = "b"
    waiting.remove(one)
    assert waiting.add(six) and not waiting.add(seven), "counted for the account with which it began to wait"
    for request in (three, six, two, five):
        waiting.remove(request)
    assert (waiting.count, waiting._connections, waiting._accounts, waiting._shares.count) == (0, {}, {}, 0)
    accounts["a1"] = ""
    assert all(waiting.add(WaitingRequest("a1")) for _ in range(10)), "without accounts, connections have limits only"


def test_a_registered_client_costs_little_however_long_its_heartbeat_is(tmp_path: Path) -> None:
    """Registrations are counted. Before the fix, each could keep 400 KB: the body, and a client id of any length."""

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:

            async def beat(client_id: str = "c", producer: str = "pg", times: int = 1, text: str = "*") -> int:
                subscription = {"topic": "T", "subString": text, "subVersion": 1}
                consumers = [{"groupName": "cg", "subscriptionDataSet": [subscription]}] * times
                data = {
                    "clientID": client_id,
                    "producerDataSet": [{"groupName": producer}],
                    "consumerDataSet": consumers,
                }
                return (await cluster.ask(RequestCode.HEART_BEAT, body=orjson.dumps(data))).code

            invalid, id_max = ResponseCode.INVALID_PARAMETER, client_manage.CLIENT_ID_CHARACTERS_MAX
            group_max = client_manage.PRODUCER_GROUP_CHARACTERS_MAX
            assert [await beat("i" * id_max), await beat("i" * (id_max + 1))] == [0, invalid]
            assert [await beat(producer="p" * group_max), await beat(producer="p" * (group_max + 1))] == [0, invalid]
            assert [await beat(times=1000), await beat(text="x" * 200_000)] == [0, 0]
            (client,) = cluster.broker.services.consumers.group("cg").clients.values()
            kept = client.channel.attributes[client_manage.LAST_HEARTBEAT]
            assert (len(kept.body), len(kept.clients), len(kept.groups)) == (32, 2, 1)
            assert await beat(times=1000) == 0
            assert len(client.channel.attributes[client_manage.LAST_HEARTBEAT].clients) == 2
            since = client.channel.attributes[client_manage.LAST_HEARTBEAT]
            assert await beat(times=1000) == 0
            assert client.channel.attributes[client_manage.LAST_HEARTBEAT] is since, "an equal body renews the times"

    run(work())


def test_several_entries_at_once_are_counted_as_such() -> None:
    shares = Shares(10, 8, 2)
    assert shares.take("a", 8) and not shares.take("a")
    assert not shares.take("b", 3), "there is no room for three, and only two are kept"
    assert shares.take("b", 2) and shares.count == 10
    assert shares.take("c", 2) and not shares.take("c")
    shares.give_back("a", 8)
    assert (shares.count, shares.of("a")) == (4, 0) and shares.take("b", 6)
