"""Watches: they begin with a sign-in, and end with it, together with the secret."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.brokers import run

from rucola.console.access.sessions import BrokerAccount, VisitSessions
from rucola.console.cluster.watches import HistoryThread, Watches
from rucola.console.config import ConsoleConfig
from rucola.console.history import History
from rucola.runtime.supervision import Supervisor
from rucola.testing.clock import ManualClock

ALICE = BrokerAccount("alice", "a secret that is long")


def test_a_watch_ends_when_nobody_is_signed_in_with_its_account(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        sessions = VisitSessions(clock.monotonic)
        history = History(str(tmp_path))
        with ThreadPoolExecutor(1) as thread:
            config = ConsoleConfig(clusters="127.0.0.1:1")
            watches = Watches(config, clock, HistoryThread(history, thread), Supervisor(), sessions.accounts)
            watches.start()
            first, _ = sessions.sign_in("", "cluster", ALICE, read_only=False)
            second, _ = sessions.sign_in("", "cluster", ALICE, read_only=False)
            watch = watches.of("cluster", ALICE)
            assert watches.of("cluster", ALICE) is watch, "visitors with one account share a watch"
            assert watches.of("cluster", BrokerAccount()) is not watch
            sessions.end(first)
            await watches.drop_idle()
            assert ("cluster", ALICE) in watches._watches
            sessions.end(second)
            await watches.drop_idle()
            assert set(watches._watches) == {("cluster", BrokerAccount())}
            await watches.close()
        history.close()

    run(work())
