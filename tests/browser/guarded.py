"""Brokers with users and rules: signing in, who may do what, and the changes of rules and users."""

from __future__ import annotations

import json
from typing import Final

from tests.browser.changes import fill, make, show
from tests.browser.shown import Visitor

from rucola.client.admin import AdminClient
from rucola.client.config import ClientConfig

ADMIN: Final = {"username": "admin", "password": "a-secret-of-the-admin"}
USER: Final = "till-42"
_AUTH: Final = "org.apache.rocketmq.auth"
SETTINGS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps(ADMIN),
}
OFFICIAL_SETTINGS: Final = {
    **SETTINGS,
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ADMIN["username"], "secretKey": ADMIN["password"]}
    ),
}
"""Options of the official broker."""


async def add_user(namesrv: str, broker: str) -> None:
    """Adds the user whose rules are changed."""
    config = ClientConfig(access_key=ADMIN["username"], secret_key=ADMIN["password"])
    async with AdminClient(namesrv, config=config) as admin:
        user = {"username": USER, "password": "a-secret-of-the-till", "userType": "Normal"}
        await admin.auth.create_user(broker, user)


async def sign_in(visitor: Visitor) -> None:
    """Signs in, first with a wrong secret."""
    page = visitor.page
    visitor.where = f"login ({visitor.name})"
    await page.goto(f"{visitor.address}/cluster/access")
    await visitor.check("login")
    for secret in ("wrong", ADMIN["password"]):
        visitor.where = f"login-{'wrong' if secret == 'wrong' else 'right'} ({visitor.name})"
        await page.fill("[name=account]", ADMIN["username"])
        await page.fill("[name=secret]", secret)
        await page.click("form.login button")
        if secret == "wrong":
            visitor.expect(await page.locator(".alarm").count() == 1, "a wrong secret is not refused")
            await visitor.check("login-wrong")
    visitor.expect(ADMIN["password"] not in await page.content(), "the secret is in the page")
    visitor.expect(USER in await visitor.text(), f"does not list {USER}")


async def look(visitor: Visitor) -> None:
    """What an administrator sees."""
    await visitor.open("access", "access-users")
    await visitor.open("", "overview-signed-in")


async def change(visitor: Visitor) -> None:
    """Sets a rule, asks what it allows, deletes it; disables and deletes the user."""
    await _ask(visitor, "refused", "access-refused")
    await show(visitor, "rule")
    await fill(visitor, user=USER, resource="Topic:orders*", actions="Pub", addresses="127.0.0.1")
    await visitor.check("change-rule-plan")
    await make(visitor, "rule")
    await _ask(visitor, "allowed", "access-allowed")
    await show(visitor, "delete-rule", user=USER, resource="Topic:orders*")
    await make(visitor, "delete-rule")
    await _ask(visitor, "refused", "access-refused-again")
    await show(visitor, "user", user=USER, do="disable")
    await make(visitor, "user-disabled")
    await visitor.open("access", "access-disabled")
    visitor.expect("disabled" in await visitor.text(), f"{USER} is not disabled")
    await show(visitor, "user", user=USER, do="delete")
    await make(visitor, "user-deleted", USER)
    await visitor.open("access", "access-deleted")
    visitor.expect(USER not in await visitor.text(), f"{USER} is still there")


async def _ask(visitor: Visitor, answer: str, name: str) -> None:
    await visitor.open(f"access?account={USER}&name=orders&action=Pub", name)
    found = await visitor.text("p[role=status]")
    visitor.expect(answer in found, f"answers {found!r}")
