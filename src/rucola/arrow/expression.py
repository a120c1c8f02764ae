"""Option ``subExpression``: tags, or a condition in SQL92 over the properties."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

from rucola.client.message_selector import looks_like_sql
from rucola.errors import ConfigError, FormatError
from rucola.filter.tag import TagExpression, parse_tag_expression


class ExpressionKind(StrEnum):
    """How ``subExpression`` is interpreted."""

    AUTO = "auto"
    """Interprets the text as SQL92 if it looks like SQL92, otherwise as tags."""
    TAG = "tag"
    SQL92 = "sql92"


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """A condition that can be compiled. Brokers evaluate it before they return messages. Tasks evaluate it as well,
    because no broker filters the messages of a store directory.
    """

    sub_string: str
    matches_all: ClassVar[bool] = False


Expression: TypeAlias = TagExpression | SqlCondition


def parse_expression(text: str, kind: ExpressionKind) -> Expression:
    """Parses the expression of a query.

    Args:
        text: the user's text.
        kind: how to interpret the text.

    Raises:
        ConfigError: the text cannot be interpreted as ``kind``.
    """
    is_sql = kind is ExpressionKind.SQL92 or (kind is ExpressionKind.AUTO and looks_like_sql(text))
    try:
        if not is_sql:
            return parse_tag_expression(text)
        from rucola.filter.sql import compile_sql  # imported here, because most queries do not need it

        compile_sql(text)  # a broker would return every message if the condition were invalid
        return SqlCondition(text)
    except FormatError as error:
        allowed = (
            "a condition in SQL92; expressionType=tag reads it as tags" if is_sql else "tags separated by ||, or *"
        )
        raise ConfigError("subExpression", text, f"{allowed} ({error})") from error
