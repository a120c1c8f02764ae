"""Which messages a reader wants: by tag, or by a condition on their properties."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from rucola.errors import ClientError

_LOOKS_LIKE_SQL = re.compile(
    r"[<>=()']|\s(and|or|is|in|not|between|contains|startswith|endswith|like)\s", re.IGNORECASE
)


class ExpressionType(StrEnum):
    """How a broker is to read an expression."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """An expression and its kind. Made by ``by_tag`` and ``by_sql``; a plain text stands for the former.

    Attributes:
        expression: the text.
        expression_type: the kind.
    """

    expression: str
    expression_type: ExpressionType = ExpressionType.TAG

    @staticmethod
    def by_tag(expression: str) -> MessageSelector:
        """Messages with one of the tags in ``A || B``; ``*`` for all messages.

        Raises:
            ClientError: there is no tag in it.
        """
        text = _text(expression)
        if not text.replace("|", " ").strip():
            raise ClientError(f"a tag expression names at least one tag, or is *; not {expression!r}")
        return MessageSelector(text)

    @staticmethod
    def by_sql(expression: str) -> MessageSelector:
        """Messages whose properties fulfil a condition, as ``a > 3 AND region = 'eu'``.

        Brokers need ``enablePropertyFilter=true`` for that; they judge what is in the expression.

        Raises:
            ClientError: it is empty.
        """
        text = _text(expression)
        if not text.strip():
            raise ClientError("an SQL92 expression must not be empty")
        return MessageSelector(text, ExpressionType.SQL92)

    @property
    def tags(self) -> frozenset[str]:
        """The tags to compare with those of messages, since brokers compare hashes only; empty for no comparison."""
        if self.expression_type is ExpressionType.SQL92 or self.expression == "*":
            return frozenset()
        return frozenset(tag.strip() for tag in self.expression.split("||")) - {""}


def message_selector(expression: str | MessageSelector) -> MessageSelector:
    """The selector that is meant: a text stands for tags.

    Raises:
        ClientError: it is neither, or a text that looks like a condition, which no tag would ever match.
    """
    if isinstance(expression, MessageSelector):
        return expression
    if looks_like_sql(_text(expression)):
        raise ClientError(
            f"expression {expression!r} looks like SQL92, and a plain text means tags: say "
            "MessageSelector.by_sql(...), or MessageSelector.by_tag(...) if a tag is called that"
        )
    return MessageSelector.by_tag(expression)


def looks_like_sql(expression: str) -> bool:
    """Whether a text that may mean tags can hardly mean any: it has an operator of SQL92 in it."""
    return _LOOKS_LIKE_SQL.search(expression) is not None


def _text(expression: object) -> str:
    if not isinstance(expression, str):
        raise ClientError(f"an expression must be a str or a MessageSelector, not {expression!r}")
    return expression
