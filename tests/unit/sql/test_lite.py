"""Lite topics in SQL: a column of their parent's messages, whose conditions reach the reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.arrow.lite_stores import COUNT, filled, name_of

from rucola.arrow import topic_dataset
from rucola.arrow.ranges import RecordRange
from rucola.sql import connect
from rucola.sql.session import Session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    path = tmp_path_factory.mktemp("lite") / "store"
    filled(path).shutdown()
    with connect(path) as opened:
        yield opened


def in_topics(*names: str | None) -> int:
    return sum(name_of(number) in names for number in range(COUNT))


@pytest.mark.parametrize(
    ("condition", "count", "by_units"),
    [
        ("\"liteTopic\" = 's4'", in_topics("s4"), True),
        ("\"liteTopic\" in ('s4', 's6')", in_topics("s4", "s6"), True),
        ("\"liteTopic\" like 's4%'", in_topics("s4"), False),
        ('"liteTopic" is null', in_topics(None), False),
        ('"liteTopic" = \'s4\' and "liteOffset" = 0', 1, True),
    ],
)
def test_conditions(
    session: Session, condition: str, count: int, by_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = topic_dataset.read_range
    pieces: list[Any] = []

    def read_range(options: Any, schema: Any, piece: Any) -> Any:
        pieces.append(piece)
        return read(options, schema, piece)

    monkeypatch.setattr(topic_dataset, "read_range", read_range)
    table = session.run(f'select count(*) from "Parent" where {condition}').read_all()
    assert table.column(0).to_pylist() == [count]
    assert all(isinstance(piece, RecordRange) for piece in pieces) is by_units
