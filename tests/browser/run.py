"""The console in Chromium, against our broker and an official one: ``make browser``.

Opens each page light, dark and on a phone's width, makes each change by its buttons, uses the keyboard alone, and
photographs every page. The exit status is 1 if the browser reports an error or a breach of the content-security policy,
if a page is wider than its screen, if axe finds something serious, or if a change did not do what it said; 2 if
something is not installed. Nobody but a person can say whether the pictures look right: look at them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.browser.needs import MissingError, check_packages, chromium
from tests.browser.scene import SETTINGS
from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import OURS, JavaServers, RucolaServers, Servers

PICTURES: Final = ROOT / "build" / "browser"
DOCS: Final = {
    "overview-light.png": "console-overview.png",
    "group-behind-light.png": "console-group.png",
    "change-reset-offsets-light.png": "console-change.png",
}
"""Pictures for docs/console.md, and their names there."""
_PEERS: Final = {"rucola": RucolaServers, "java": JavaServers}


def main(arguments: list[str]) -> int:
    """Runs everything; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.run", description=__doc__)
    parser.add_argument("--peer", choices=_PEERS, action="append", help="only against this kind of broker")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help=f"directory of the pictures [{PICTURES}]")
    parser.add_argument("--docs", action="store_true", help="replace the three pictures of docs/console.md")
    options = parser.parse_args(arguments)
    complaints: list[str] = []
    logging.getLogger("rucola").setLevel(logging.CRITICAL)  # one of the consumers fails on purpose
    try:
        check_packages()
        program = chromium()
        for peer in options.peer or list(_PEERS):
            with _PEERS[peer](settings=SETTINGS) as servers:
                found = asyncio.run(_drive(servers, program, options.pictures / peer))
            print(f"{peer}: {len(found)} complaints; pictures in {options.pictures / peer}", flush=True)
            complaints += [f"{peer}: {line}" for line in found]
    except (MissingError, PeerError) as error:
        print(f"make browser: {error}", file=sys.stderr)
        return 2
    if options.docs:
        _copy_pictures(options.pictures / "rucola")
    for line in dict.fromkeys(complaints):
        print(line)
    print(f"{0 if complaints else 1} passed, {1 if complaints else 0} failed")
    return 1 if complaints else 0


async def _drive(servers: Servers, program: str, pictures: Path) -> list[str]:
    from playwright.async_api import async_playwright
    from tests.browser import changes, pages
    from tests.browser.scene import scene, write_history
    from tests.browser.seen import when_seen
    from tests.browser.shown import Complaints, Visitor

    from rucola.client.admin import AdminClient

    complaints = Complaints()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "console"
        write_history(data, "cluster", servers.broker)
        async with scene(servers.namesrv, servers.broker), AdminClient(servers.namesrv) as admin:
            with console(servers.namesrv, data, servers.store) as address:
                where = pages.addresses(servers.broker, await when_seen(address))
                for page in pages.unopened(where):
                    complaints.add(page, "is not opened by tests/browser/pages.py")
                async with async_playwright() as playwright:
                    browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
                    for name in ("light", "dark", "narrow"):
                        visitor = await Visitor.of(browser, name, address, complaints, pictures)
                        await visitor.attempt(pages.visit_all(visitor, where))
                        await visitor.attempt(pages.shipped_bodies(visitor))
                        for part in (pages.follows, pages.queries, pages.explores):
                            await visitor.attempt(part(visitor))
                        await visitor.close()
                    visitor = await Visitor.of(browser, "light", address, complaints, pictures)
                    for part in (pages.look_changes, pages.keys, pages.refreshes, pages.copies, pages.exports):
                        await visitor.attempt(part(visitor))
                    await visitor.attempt(changes.make_all(visitor, admin, servers.broker))
                    await browser.close()
    return complaints.found


@contextmanager
def console(namesrv: str, data: Path, store: Path) -> Iterator[str]:
    """A console in a process of its own; yields its address."""
    command = [sys.executable, "-m", "rucola", "console", "-n", namesrv, "--port", "0", "--data", str(data), "--json"]
    command += ["--store", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **OURS}) as process:
        try:
            assert process.stdout is not None
            yield f"http://{json.loads(process.stdout.readline())['console']}"
        finally:
            process.terminate()


def _copy_pictures(pictures: Path) -> None:
    for source, target in DOCS.items():
        shutil.copy(pictures / source, ROOT / "docs" / target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
