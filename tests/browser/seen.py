"""What the console has seen of the scene, asked of its API: the pages' addresses need it."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from urllib.request import urlopen

from tests.browser.scene import FAILING, HEALTHY, WAITING

from rucola.common.json_library import orjson

_TRIES: Final = 120
_PAUSE_S: Final = 0.5


class SeenScene(NamedTuple):
    """Names that differ from run to run.

    Attributes:
        client: id of a consumer of the healthy group.
        traced: unique key of a message whose way is known.
        timed: the first row of messages that wait for a time.
        half: the first row of transactions without a decision.
    """

    client: str
    traced: str
    timed: dict[str, Any]
    half: dict[str, Any]


async def when_seen(address: str) -> SeenScene:
    """Waits until the console has seen what the pages show.

    Raises:
        AssertionError: it does not see it in a minute.
    """

    async def ask(path: str) -> Any:
        def answer() -> Any:
            with urlopen(f"{address}/api/cluster/{path}") as found:
                return orjson.loads(found.read())

        return await asyncio.to_thread(answer)

    missing = ""
    for _ in range(_TRIES):
        groups = {one["name"]: one for one in (await ask("groups?only=all&size=100"))["rows"]}
        members = groups.get(HEALTHY, {}).get("members")
        orders = (await ask("messages?by=key&topic=orders&key=order-7"))["rows"]
        traced = orders[0]["unique_key"] if orders else ""
        waiting = {kind: (await ask(f"waiting?kind={kind}"))["rows"] for kind in ("timed", "half", "popped")}
        seen = {
            "members": members,
            "dead letters": groups.get(FAILING, {}).get("dead") not in (None, "0"),
            "traces": traced and (await ask(f"trace?topic=orders&key={quote(traced)}"))["traced"],
            **{f"{kind} messages": len(rows) >= (1 if kind == "popped" else WAITING) for kind, rows in waiting.items()},
        }
        missing = ", ".join(name for name, is_there in seen.items() if not is_there)
        if not missing:
            return SeenScene(str(members[0]["client_id"]), traced, waiting["timed"][0], waiting["half"][0])
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"the console has not seen: {missing}")
