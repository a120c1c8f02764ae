"""Plans of changes, and how a plan is carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rucola.console.visit import Visit
from rucola.errors import BrokerError, RemotingUnansweredError, RucolaError
from rucola.protocol.codes import ResponseCode

_TEXT_MAX = 300


class StepOutcome(StrEnum):
    """What became of a step."""

    DONE = "done"
    UNCHANGED = "unchanged"
    """It was so already; nothing was sent."""
    REFUSED = "refused"
    """A server refused it, or could not be reached; nothing has changed."""
    FAILED = "failed"
    """It was carried out, and whoever did it reports a failure."""
    UNKNOWN = "unknown"
    """No answer came: it may have happened. It is not tried again."""
    NOT_TRIED = "not-tried"
    """An earlier step at the same server had no answer."""


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """One request of a change.

    Attributes:
        target: what it changes: a queue, a broker, a message.
        server: address of the server that gets it.
        before: how it is now; ``after``: how it will be.
        effect: what that means, in a few words, as a key of the catalogue with places for ``values``.
        run: sends it, and may return a remark; None if there is nothing to do.
    """

    target: str
    server: str
    before: str
    after: str
    effect: str
    values: Mapping[str, str]
    run: Callable[[], Awaitable[object]] | None = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A change as it is shown before it is made.

    Attributes:
        subject: name of the changed object; ``must_type``: whether the visitor has to type it.
        button: what the button says, a key of the catalogue with places for ``values``: "Skip {count} messages".
        notes: further effects, each a key of the catalogue and its values.
        fingerprint: what must still be the same when the change is made.
        command: the same as options of ``rucola mqadmin``; empty if there is none.
        rest: parameters of the next change of this kind, which goes on where this one ends; empty if nothing is left.
        finish: releases what the steps used; None if there is nothing.
    """

    subject: str
    button: str
    values: Mapping[str, str]
    steps: tuple[ChangeStep, ...]
    fingerprint: tuple[Any, ...]
    notes: tuple[tuple[str, Mapping[str, str]], ...] = ()
    must_type: bool = False
    command: str = ""
    rest: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[], Awaitable[None]] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step; ``text``: the server's answer if it is not done."""

    target: str
    outcome: str
    text: str


class PlanError(Exception):
    """A change that cannot be made: a system topic, a name that exists or does not. ``args`` are a key of the catalogue
    and its values.
    """

    def __init__(self, text: str, **values: str) -> None:
        super().__init__(text, values)
        self.text, self.values = text, values

    def __str__(self) -> str:
        return self.text.format(**self.values)


class StepFailedError(Exception):
    """A step was carried out, and whoever did it reports a failure; ``args[0]`` says which."""


@dataclass(frozen=True, slots=True)
class KindOfChange:
    """A kind of change.

    Attributes:
        kind: its name in addresses.
        title: key of its title in the catalogue.
        query: data class of its parameters.
        plan: makes the plan.
        template: its form.
        permission: what the account needs, for the documentation.
        under: the entry of the menu that it belongs to.
        is_complete: whether the parameters are enough for a plan.
        fill: fills in the form from the parameters that there are; None if nothing is to be filled in.
        has_content: whether the parameters hold content of messages, which must not be in an address.
    """

    kind: str
    title: str
    query: type[Any]
    plan: Callable[[Visit, Any], Awaitable[ChangePlan]]
    template: str
    permission: str
    under: str
    is_complete: Callable[[Any], bool]
    fill: Callable[[Visit, Any], Awaitable[Any]] | None = None
    has_content: bool = False


async def carry_out(plan: ChangePlan) -> list[StepResult]:
    """Makes the steps one after the other. After a step without an answer, no further step goes to the same server."""
    results: list[StepResult] = []
    lost: set[str] = set()
    try:
        for step in plan.steps:
            if step.run is None:
                outcome, text = StepOutcome.UNCHANGED, ""
            elif step.server in lost:
                outcome, text = StepOutcome.NOT_TRIED, ""
            else:
                outcome, text = await _outcome(step.run)
            if outcome is StepOutcome.UNKNOWN:
                lost.add(step.server)
            results.append(StepResult(step.target, outcome.value, text[:_TEXT_MAX]))
    finally:
        if plan.finish is not None:
            await plan.finish()
    return results


async def _outcome(run: Callable[[], Awaitable[object]]) -> tuple[StepOutcome, str]:
    try:
        answer = await run()
    except RemotingUnansweredError as error:
        return StepOutcome.UNKNOWN, str(error)
    except StepFailedError as error:
        return StepOutcome.FAILED, str(error.args[0])
    except RucolaError as error:
        # A client that was asked through its broker has not answered.
        is_silent = isinstance(error, BrokerError) and error.code == ResponseCode.CONSUME_MSG_TIMEOUT
        return StepOutcome.UNKNOWN if is_silent else StepOutcome.REFUSED, str(error)
    return StepOutcome.DONE, answer if isinstance(answer, str) else ""
