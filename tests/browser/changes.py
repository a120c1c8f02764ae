"""Each change, by the buttons of its pages, and what it did as the broker says."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from tests.browser.scene import FAILED, FAILING, STOPPED
from tests.browser.shown import Visitor

from rucola.client.admin import AdminClient

NEW_TOPIC: Final = "made-here"
NEW_GROUP: Final = "made-here-too"


async def make_all(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """Makes each change once, in an order in which each finds what it needs."""
    await _topic(visitor, admin, broker)
    await _group(visitor, admin, broker)
    await _reset(visitor, admin)
    await _resend(visitor, admin, broker)
    await _delete(visitor, admin, broker)
    await visitor.open("audit", "audit-after")
    text = await visitor.text()
    for word in (NEW_TOPIC, NEW_GROUP, STOPPED, FAILING):
        visitor.expect(word in text, f"the audit log does not name {word}")


async def _show(visitor: Visitor, kind: str, **query: object) -> None:
    visitor.where = f"change {kind}"
    await visitor.page.goto(f"{visitor.address}/cluster/change/{kind}?{urlencode(query)}")


async def _fill(visitor: Visitor, **fields: str) -> None:
    for name, value in fields.items():
        await visitor.page.fill(f"form.change [name={name}]", value)
    await visitor.page.click("form.change > button")


async def _make(visitor: Visitor, name: str, confirm: str = "") -> None:
    """Presses the button of the plan that is shown, and checks the result."""
    page = visitor.page
    if await page.locator("form.confirm").count() == 0:
        visitor.expect(False, f"shows no plan: {await visitor.text()}")
        return
    if confirm:
        await page.fill("form.confirm [name=confirm]", "wrong")
        await page.click("form.confirm button")
        visitor.expect("to confirm" in await visitor.text(".alarm"), "a wrong name is accepted")
        await page.fill("form.confirm [name=confirm]", confirm)
    await page.click("form.confirm button")
    text = await visitor.text()
    visitor.expect("Result" in text and "done" in text, f"is not done: {text}")
    visitor.expect(" refused" not in text and " unknown" not in text, f"is done in part: {text}")
    await visitor.check(f"made-{name}")


async def _topic(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    await _show(visitor, "topic")
    await _fill(visitor, name=NEW_TOPIC, queues="3")
    await _make(visitor, "topic")
    config = await admin.api.topic_config(broker, NEW_TOPIC)
    visitor.expect(config.read_queue_nums == config.write_queue_nums == 3, f"made {config}")


async def _group(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    await _show(visitor, "group")
    await _fill(visitor, name=NEW_GROUP, retries="5")
    await _make(visitor, "group")
    config = await admin.api.group_config(broker, NEW_GROUP)
    visitor.expect(config.retry_max_times == 5, f"made {config}")


async def _reset(visitor: Visitor, admin: AdminClient) -> None:
    await _show(visitor, "reset-offsets", group=STOPPED, topic="orders", to="end")
    await _make(visitor, "reset-offsets")
    await _show(visitor, "reset-offsets", group=STOPPED, topic="orders", to="begin")
    await _make(visitor, "reset-offsets-begin")
    table = (await admin.consume_stats(STOPPED, "orders")).offset_table
    visitor.expect(all(one.consumer_offset == 0 for one in table.values()), f"left {table}")


async def _resend(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """All dead letters of the group, found from its page as somebody would."""
    page = visitor.page
    visitor.where = "change resend"
    before = await _end_of(admin, broker, "payments")
    await page.goto(f"{visitor.address}/cluster/group?name={FAILING}")
    await page.click("a.button:has-text('Resend dead letters')")
    await page.select_option("form.change [name=to]", "topic")
    await page.click("form.change > button")
    await _make(visitor, "resend")
    after = await _end_of(admin, broker, "payments")
    visitor.expect(after - before == FAILED, f"sent {after - before} copies instead of {FAILED}")


async def _end_of(admin: AdminClient, broker: str, topic: str) -> int:
    offsets = (await admin.api.topic_stats(broker, topic)).offset_table.values()
    return sum(one.max_offset for one in offsets)


async def _delete(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    await _show(visitor, "delete-topic", name=NEW_TOPIC)
    await _make(visitor, "delete-topic", NEW_TOPIC)
    await _show(visitor, "delete-group", name=NEW_GROUP)
    await _make(visitor, "delete-group", NEW_GROUP)
    visitor.expect(NEW_TOPIC not in await admin.api.all_topic_configs(broker), "the topic is still there")
    visitor.expect(NEW_GROUP not in await admin.api.all_groups(broker), "the group is still there")
