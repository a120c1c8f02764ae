"""The table of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rucola.console.changes import access, groups, letters, messages, offsets, topics, transactions
from rucola.console.changes.plan import KindOfChange

_ADMIN: Final = "administrator"

CHANGES: Final[Mapping[str, KindOfChange]] = {
    change.kind: change
    for change in (
        KindOfChange(
            "reset-offsets", "Reset offsets", offsets.ResetQuery, offsets.plan_reset, "change_reset.html", _ADMIN,
            "groups", offsets.is_complete,
        ),
        KindOfChange(
            "resend", "Resend dead letters", letters.ResendQuery, letters.plan_resend, "change_resend.html",
            "SUB on the dead-letter topic and on group `TOOLS_CONSUMER`, PUB on the topic that gets the copies",
            "groups", letters.is_complete,
        ),
        KindOfChange(
            "send", "Send a message", messages.SendQuery, messages.plan_send, "change_send.html", "PUB on the topic",
            "messages", lambda query: bool(query.topic and query.body), messages.fill_send, has_content=True,
        ),
        KindOfChange(
            "consume", "Have a message consumed now", messages.ConsumeQuery, messages.plan_consume,
            "change_consume.html", _ADMIN, "messages", lambda query: bool(query.topic and query.place and query.group),
        ),
        KindOfChange(
            "recall", "Cancel a timed message", messages.RecallQuery, messages.plan_recall, "change_recall.html",
            "PUB on the topic, SUB on `rmq_sys_wheel_timer`; the account that sent it", "waiting",
            lambda query: bool(query.topic and query.broker and query.key and query.due),
        ),
        KindOfChange(
            "transaction", "End a transaction", transactions.TransactionQuery, transactions.plan_transaction,
            "change_transaction.html", _ADMIN, "waiting",
            lambda query: bool(query.broker and query.offset and query.to),
        ),
        KindOfChange(
            "topic", "Create or configure a topic", topics.TopicQuery, topics.plan_topic, "change_topic.html", _ADMIN,
            "topics", lambda query: bool(query.name and query.queues),
        ),
        KindOfChange(
            "delete-topic", "Delete a topic", topics.DeleteTopicQuery, topics.plan_delete, "change_delete_topic.html",
            _ADMIN, "topics", lambda query: bool(query.name),
        ),
        KindOfChange(
            "group", "Create or configure a group", groups.GroupQuery, groups.plan_group, "change_group.html", _ADMIN,
            "groups", lambda query: bool(query.name and query.retries >= 0),
        ),
        KindOfChange(
            "delete-group", "Delete a group", groups.DeleteGroupQuery, groups.plan_delete, "change_delete_group.html",
            _ADMIN, "groups", lambda query: bool(query.name),
        ),
        KindOfChange(
            "rule", "Set a rule of a user", access.RuleQuery, access.plan_rule, "change_rule.html", _ADMIN, "access",
            lambda query: bool(query.user and query.resource),
        ),
        KindOfChange(
            "delete-rule", "Delete a rule of a user", access.DeleteRuleQuery, access.plan_delete_rule,
            "change_delete_rule.html", _ADMIN, "access", lambda query: bool(query.user and query.resource),
        ),
        KindOfChange(
            "user", "Enable, disable or delete a user", access.UserQuery, access.plan_user, "change_user.html", _ADMIN,
            "access", lambda query: bool(query.user and query.do),
        ),
    )
}  # fmt: skip
"""All kinds of changes, by their names in addresses."""
