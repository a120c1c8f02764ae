"""Subscription expressions: parsers and evaluators without I/O."""

from rucola.filter.tag import TagExpression, parse_tag_expression, parse_tags

__all__ = ["TagExpression", "parse_tag_expression", "parse_tags"]
