"""Where changes are shown and made: tokens, the audit log, and the changes that run."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rucola.console.audit import AuditLog
from rucola.console.changes.plan import ChangePlan, KindOfChange, StepResult, carry_out
from rucola.console.changes.table import CHANGES
from rucola.console.visit import Visit
from rucola.errors import DiskError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

T = TypeVar("T")
TOKEN_S: Final = 300.0
TOKENS_MAX: Final = 1_000
_STOP_S: Final = 10.0
STEPS_LOGGED: Final = 200
"""Steps whose effect the audit log names; of further ones it has the number."""


class ReadOnlyError(Exception):
    """The console, or the visitor's session, is read-only."""


class TokenError(Exception):
    """A token is unknown, used, too old, or somebody else's."""


class ConfirmError(Exception):
    """The visitor did not type the name of what is to be deleted; ``args[0]`` is this name."""


class MovedError(Exception):
    """What was shown is not so any more: the change must be looked at again."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A plan that was shown, and to whom."""

    owner: tuple[str, str, str]
    change: KindOfChange
    query: Any
    plan: ChangePlan
    until_s: float


@dataclass(frozen=True, slots=True)
class Made:
    """A change that was made."""

    id: str
    plan: ChangePlan
    results: tuple[StepResult, ...]


class ChangeDesk:
    """Plans and makes changes. Event loop only.

    Args:
        audit: the audit log.
        thread: the thread that writes it.
        monotonic: the time in seconds.
    """

    def __init__(self, audit: AuditLog, thread: Executor, monotonic: Callable[[], float]) -> None:
        self._audit, self._thread, self._monotonic = audit, thread, monotonic
        self._shown: dict[str, _Shown] = {}
        self._running: set[asyncio.Task[Made]] = set()

    async def show(self, visit: Visit, change: KindOfChange, query: Any) -> tuple[str, ChangePlan]:
        """Plans a change and returns a token for it, which is good once and for ``TOKEN_S``.

        Raises:
            ReadOnlyError: nothing may be changed.
            PlanError: the change cannot be made.
            BadQueryError: a parameter is not allowed.
        """
        if not visit.may_change:
            raise ReadOnlyError
        plan = await change.plan(visit, query)
        now_s = self._monotonic()
        for token in [token for token, shown in self._shown.items() if shown.until_s <= now_s]:
            del self._shown[token]
        while len(self._shown) >= TOKENS_MAX:
            del self._shown[next(iter(self._shown))]
        token = secrets.token_urlsafe(24)
        self._shown[token] = _Shown(_owner(visit), change, query, plan, now_s + TOKEN_S)
        return token, plan

    async def make(self, visit: Visit, token: str, confirm: str) -> Made:
        """Makes the change that was shown with a token. It goes on if the visitor leaves.

        Args:
            confirm: what the visitor typed.

        Raises:
            ReadOnlyError: nothing may be changed.
            TokenError: the token is not good.
            ConfirmError: ``confirm`` is not the name of the object. The token stays good.
            MovedError: what was shown has changed.
            PlanError: the change cannot be made any more.
            DiskError: the audit log cannot be written; nothing was changed.
        """
        if not visit.may_change:
            raise ReadOnlyError
        shown = self._shown.get(token)
        if shown is None or shown.owner != _owner(visit) or shown.until_s <= self._monotonic():
            raise TokenError
        if shown.plan.must_type and confirm != shown.plan.subject:
            raise ConfirmError(shown.plan.subject)
        del self._shown[token]
        again = await shown.change.plan(visit, shown.query)
        if again.fingerprint != shown.plan.fingerprint:
            raise MovedError
        task = asyncio.ensure_future(self._make(visit, shown))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def audited(self, count: int) -> list[dict[str, Any]]:
        """The newest lines of the audit log."""
        return await self._on_thread(lambda: self._audit.latest(count))

    async def close(self) -> None:
        """Waits for the changes that run."""
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_S)

    async def _make(self, visit: Visit, shown: _Shown) -> Made:
        plan = shown.plan
        what = _what(plan)
        identity = await self._on_thread(
            lambda: self._audit.begin(visit.account.name, visit.peer, visit.cluster, shown.change.kind, what)
        )
        results = await carry_out(plan)
        visit.watch.poller.expect_change()
        lines = [{"target": one.target, "outcome": one.outcome, "text": one.text} for one in results[:STEPS_LOGGED]]
        try:
            await self._on_thread(lambda: self._audit.end(identity, lines))
        except DiskError as error:
            # The change is made, and the visitor must learn of it. A line without an end says that nobody knows.
            event(logger, logging.ERROR, "result of a change is missing in the audit log", id=identity, error=error)
        return Made(identity, plan, tuple(results))

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def change_of(kind: str) -> KindOfChange | None:
    """The kind of change with a name."""
    return CHANGES.get(kind)


def _owner(visit: Visit) -> tuple[str, str, str]:
    session = visit.session.csrf if visit.session is not None else ""
    return visit.cluster, visit.account.name, session


def _what(plan: ChangePlan) -> Mapping[str, Any]:
    steps = [f"{step.target}: {step.before} -> {step.after}" for step in plan.steps[:STEPS_LOGGED]]
    return {
        "subject": plan.subject,
        "does": plan.button.format(**plan.values),
        "steps": steps,
        "count": len(plan.steps),
    }
