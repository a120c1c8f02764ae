"""An attacker's process: ``python -m tests.attack.siege.attacker NAME ADDRESSES SECONDS``."""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from tests.attack.siege.attacks import ATTACKS
from tests.attack.siege.target import Addresses


async def _attack(name: str, addresses: Addresses, seconds: float) -> None:
    work = asyncio.ensure_future(ATTACKS[name].run(addresses))
    await asyncio.wait([work], timeout=seconds)
    if work.done():
        work.result()
        return
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def main() -> None:
    name, addresses, seconds = sys.argv[1:]
    os.nice(5)  # the attacker has a low priority: the test measures the broker, not the competition for the processor
    print("begins", flush=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_attack(name, Addresses.of_json(addresses), float(seconds)))


if __name__ == "__main__":
    main()
