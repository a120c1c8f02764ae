"""The table of views: for each its address, its query, its value, its template, and the same as a command."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rucola.console.lists import ListQuery
from rucola.console.views import (
    access,
    audit,
    history,
    lists,
    members,
    messages,
    objects,
    sql,
    store,
    tail,
    trace,
    waiting,
)
from rucola.console.views.listing import NameQuery, NoQuery
from rucola.console.visit import Visit


@dataclass(frozen=True, slots=True)
class View:
    """One view.

    Attributes:
        path: last part of its address, below the cluster; empty for the overview.
        title: key of its title in the catalogue.
        query: data class of its parameters.
        value: data class of what it shows.
        show: makes the value.
        template: its page; empty if it has none.
        command: the same as options of ``rucola mqadmin``; empty if there is no such command.
        under: the entry of the menu that it belongs to.
        live: whether its page refreshes itself.
        is_still: whether it does not although it is live, because a value does not change any more.
    """

    path: str
    title: str
    query: type[Any]
    value: type[Any]
    show: Callable[[Visit, Any], Awaitable[Any]]
    template: str
    command: Callable[[Any], str]
    under: str
    live: bool = True
    is_still: Callable[[Any], bool] = lambda _value: False


def _nothing(_query: object) -> str:
    return ""


def _fixed(text: str) -> Callable[[object], str]:
    return lambda _query: text


def _message_command(query: messages.MessagesQuery) -> str:
    topic = shlex.quote(query.topic or "TOPIC")
    if query.by == "id":
        return f"queryMsgById -t {topic} -i {shlex.quote(query.key or 'ID')}"
    if query.by == "key":
        return f"queryMsgByKey -t {topic} -k {shlex.quote(query.key or 'KEY')}"
    if query.by == "unique":
        return f"queryMsgByUniqueKey -t {topic} -i {shlex.quote(query.key or 'ID')}"
    if query.by == "offset":
        place = f"-b {shlex.quote(query.broker or 'BROKER')} -i {query.queue or 0} -o {query.offset or 0}"
        return f"queryMsgByOffset -t {topic} {place}"
    return f"printMsg -t {topic}"


VIEWS: Final = (
    View("", "Overview", NoQuery, lists.Overview, lists.overview, "overview.html", _fixed("clusterList -m"), ""),
    View(
        "topics", "Topics", ListQuery, lists.TopicRows, lists.topics, "topics.html", _fixed("topicList -c"), "topics"
    ),
    View(
        "topic", "Topic", NameQuery, objects.TopicPage, objects.topic, "topic.html",
        lambda query: f"topicStatus -t {shlex.quote(query.name)}", "topics",
    ),
    View(
        "groups", "Groups", ListQuery, lists.GroupRows, lists.groups, "groups.html", _fixed("consumerProgress"),
        "groups",
    ),
    View(
        "group", "Group", NameQuery, objects.GroupPage, objects.group, "group.html",
        lambda query: f"consumerProgress -g {shlex.quote(query.name)}", "groups",
    ),
    View(
        "members", "Members over time", members.MembersQuery, members.MembersPage, members.group_members,
        "members.html", lambda query: f"consumerConnection -g {shlex.quote(query.name)}", "groups",
    ),
    View("clients", "Clients", ListQuery, lists.ClientRows, lists.clients, "clients.html", _nothing, "clients"),
    View(
        "client", "Client", objects.ClientQuery, objects.ClientPage, objects.client, "client.html",
        lambda query: f"consumerStatus -g GROUP -i {shlex.quote(query.id)}", "clients",
    ),
    View(
        "brokers", "Brokers", ListQuery, lists.BrokerRows, lists.brokers, "brokers.html", _fixed("clusterList"),
        "brokers",
    ),
    View(
        "broker", "Broker", objects.BrokerQuery, objects.BrokerPage, objects.broker, "broker.html",
        lambda query: f"brokerStatus -b {shlex.quote(query.address)}", "brokers",
    ),
    View(
        "name-servers", "Name servers", NoQuery, lists.NameServerRows, lists.name_servers, "name_servers.html",
        _fixed("getNamesrvConfig"), "name-servers",
    ),
    View(
        "messages", "Messages", messages.MessagesQuery, messages.MessagePage, messages.messages, "messages.html",
        _message_command, "messages", live=False,
    ),
    View(
        "message", "Message", messages.OneMessageQuery, messages.MessageView, messages.message, "message.html",
        lambda query: (
            f"queryMsgByOffset -t {shlex.quote(query.topic)} -b {shlex.quote(query.broker)} -i {query.queue} "
            f"-o {shlex.quote(query.offset)}"
        ),
        "messages", live=False,
    ),
    View(
        "tail", "Live tail", tail.TailQuery, tail.TailPage, tail.tail, "tail.html", _nothing, "messages",
        is_still=lambda value: bool(value.is_still),
    ),
    View(
        "trace", "Way of a message", trace.TraceQuery, trace.TracePage, trace.trace, "trace.html",
        lambda query: f"queryMsgTraceById -i {shlex.quote(query.key or 'ID')} -t {shlex.quote(query.traces)}",
        "messages", live=False,
    ),
    View(
        "waiting", "Waiting", waiting.WaitingQuery, waiting.WaitingPage, waiting.waiting_messages, "waiting.html",
        _nothing, "waiting", live=False,
    ),
    View(
        "access", "Access", access.AccessQuery, access.AccessPage, access.access, "access.html", _fixed("listUser"),
        "access", live=False,
    ),
    View("sql", "SQL", sql.SqlQuery, sql.SqlPage, sql.sql, "sql.html", _nothing, "sql"),
    View("store", "Store", store.StoreQuery, store.StorePage, store.stores, "store.html", _nothing, "store"),
    View(
        "store-item", "Store", store.ItemQuery, store.ItemPage, store.item, "store_item.html", _nothing, "store",
        live=False,
    ),
    View(
        "store-key", "Store", store.KeyQuery, store.KeyPage, store.key, "store_key.html", _nothing, "store", live=False
    ),
    View("history", "History", history.HistoryQuery, history.HistoryPage, history.history, "", _nothing, ""),
    View("audit", "Changes made", NoQuery, audit.AuditPage, audit.audit, "audit.html", _nothing, "audit", live=False),
)  # fmt: skip
"""All views."""
