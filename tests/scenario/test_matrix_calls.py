"""The column of calls has a value for each argument of each public method."""

from __future__ import annotations

import inspect
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.scenario.matrix.calls import arguments, values_for, values_for_producer
from tests.scenario.matrix.table import ROWS, public_methods

import rucola

CLIENTS = {row.client: row.is_producer for row in ROWS}


@pytest.mark.parametrize("client", CLIENTS)
def test_each_argument_has_a_value(client: str) -> None:
    made: Any = MagicMock()
    made.message.queue_id = 0
    values = values_for_producer(made.message) if CLIENTS[client] else values_for(made.desk, made.message)
    for name in public_methods(client):
        found = inspect.getattr_static(getattr(rucola, client), name)
        if inspect.isfunction(found):
            arguments(found.__get__(made), values)
