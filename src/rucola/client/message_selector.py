"""Selects messages: by tag, or by a condition on their properties."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from rucola.client.checks import check_text
from rucola.errors import ClientError

_LOOKS_LIKE_SQL = re.compile(
    r"[<>=()']|\s(and|or|is|in|not|between|contains|startswith|endswith|like)\s", re.IGNORECASE
)


class ExpressionType(StrEnum):
    """Language of an expression."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """An expression and its type, created with ``by_tag`` or ``by_sql``. Where a method takes a selector, it also takes
    a string, which is a tag expression.

    Attributes:
        expression: the text.
        expression_type: the type.
    """

    expression: str
    expression_type: ExpressionType = ExpressionType.TAG

    @staticmethod
    def by_tag(expression: str) -> MessageSelector:
        """Selects messages with one of the tags in ``A || B``; ``*`` selects all messages.

        Raises:
            ClientError: the expression contains no tag.
        """
        text = _text(expression)
        if not text.replace("|", " ").strip():
            raise ClientError(f"a tag expression must be * or contain at least one tag, not {expression!r}")
        return MessageSelector(text)

    @staticmethod
    def by_sql(expression: str) -> MessageSelector:
        """Selects messages whose properties match a condition, for example ``a > 3 AND region = 'eu'``.

        Brokers need ``enablePropertyFilter=true`` for this; they check the syntax of the expression.

        Raises:
            ClientError: the expression is empty.
        """
        text = _text(expression)
        if not text.strip():
            raise ClientError("an SQL92 expression must not be empty")
        return MessageSelector(text, ExpressionType.SQL92)

    @property
    def tags(self) -> frozenset[str]:
        """Tags that the client compares with each message's tag, because brokers compare only hashes. Empty for ``*``
        and SQL92 expressions, for which the client compares nothing.
        """
        if self.expression_type is ExpressionType.SQL92 or self.expression == "*":
            return frozenset()
        return frozenset(tag.strip() for tag in self.expression.split("||")) - {""}


def message_selector(expression: str | MessageSelector) -> MessageSelector:
    """Returns the selector for an expression, whose text can be encoded; a string is a tag expression.

    Raises:
        ClientError: the expression is neither a string nor a selector, cannot be encoded, or is a string that looks
            like a condition and would never match a tag.
    """
    if isinstance(expression, MessageSelector):
        _text(expression.expression)
        return expression
    if looks_like_sql(_text(expression)):
        raise ClientError(
            f"expression {expression!r} looks like SQL92, but a plain string means tags: use "
            "MessageSelector.by_sql(...), or MessageSelector.by_tag(...) if it is a tag"
        )
    return MessageSelector.by_tag(expression)


def looks_like_sql(expression: str) -> bool:
    """Whether a tag expression contains an SQL92 operator, so that it is probably not meant as tags."""
    return _LOOKS_LIKE_SQL.search(expression) is not None


def _text(expression: object) -> str:
    if not isinstance(expression, str):
        raise ClientError(f"an expression must be a str or a MessageSelector, not {expression!r}")
    return check_text("expression", expression)
