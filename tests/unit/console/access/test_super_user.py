"""Whom a broker calls its super user."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rucola.client.admin import AdminClient
from rucola.console.access.super_user import _is_super


@pytest.mark.parametrize(
    ("user", "is_super"),
    [
        ({"userType": "Super", "userStatus": "enable"}, True),
        ({"userType": "Super", "userStatus": None}, True),
        ({"userType": "Super"}, True),
        ({"userType": "Super", "userStatus": "disable"}, False),
        ({"userType": "Normal", "userStatus": "enable"}, False),
    ],
)
def test_a_user_of_5_without_a_status_is_enabled(user: dict[str, Any], is_super: bool) -> None:
    async def told(_address: str, _name: str) -> dict[str, Any]:
        return user

    admin = cast(AdminClient, SimpleNamespace(auth=SimpleNamespace(user=told)))
    assert asyncio.run(_is_super(admin, "broker", "root")) is is_super
