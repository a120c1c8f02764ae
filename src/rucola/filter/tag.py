"""Tag expressions: ``*``, or tags joined by ``||`` (RocketMQ 5.3.3, ``FilterAPI``; ``protocol.md`` 5.1).

A broker compares hash codes, which are in the consume queue. A consumer then compares the tags themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.java import string_hash
from rucola.errors import FormatError

SUB_ALL = "*"
"""The expression that matches every message."""


@dataclass(frozen=True, slots=True)
class TagExpression:
    """A parsed expression.

    Attributes:
        sub_string: the expression; ``*`` also when it was empty.
        tags: its tags, sorted, each once; none for ``*``.
        codes: Java hash codes of the tags, signed 32 bits; empty for ``*``.
    """

    sub_string: str
    tags: tuple[str, ...]
    codes: frozenset[int]

    @property
    def matches_all(self) -> bool:
        """Whether every message matches."""
        return not self.tags

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag, or without a tag if None, matches. Compares the tags, not their codes."""
        return not self.tags or tag in self.tags


def parse_tag_expression(expression: str | None) -> TagExpression:
    """Parses a subscription of type TAG. A single ``|`` is part of a tag; there is neither AND nor NOT.

    Raises:
        FormatError: the expression consists only of separators.
    """
    if not expression or expression == SUB_ALL:
        return TagExpression(SUB_ALL, (), frozenset())
    tags = sorted({part.strip() for part in expression.split("||")} - {""})
    if not tags:
        raise FormatError("tag expression", 0, "a tag between the separators", repr(expression))
    return TagExpression(expression, tuple(tags), frozenset(map(string_hash, tags)))


def parse_tags(expression: str | None) -> frozenset[int] | None:
    """The hash codes that a broker filters by; None if every message matches.

    Raises:
        FormatError: as for ``parse_tag_expression``.
    """
    parsed = parse_tag_expression(expression)
    return None if parsed.matches_all else parsed.codes
