"""Subscription expressions: parsers and evaluators without I/O.

For example::

    from rucola.filter.sql import compile_sql
    from rucola.filter.tag import parse_tag_expression

    print(parse_tag_expression("UA || AA").tags)
    print(compile_sql("delay > 15 AND tags = 'UA'").text)
"""

from rucola.filter.tag import TagExpression, parse_tag_expression, parse_tags

__all__ = ["TagExpression", "parse_tag_expression", "parse_tags"]
