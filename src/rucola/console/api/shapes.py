"""Values of the API that no view has: plans, results, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rucola.console.changes.desk import TOKEN_S, Made
from rucola.console.changes.plan import ChangePlan, ChangeStep


@dataclass(frozen=True, slots=True)
class ClusterShown:
    """A cluster of this console."""

    name: str
    color: str
    namesrv: str


@dataclass(frozen=True, slots=True)
class ErrorShown:
    """Why a request was refused."""

    error: str
    text: str


@dataclass(frozen=True, slots=True)
class StepShown:
    """A step of a change: what it changes, how it is now, how it will be, and what that means."""

    target: str
    before: str
    after: str
    effect: str


@dataclass(frozen=True, slots=True)
class PlanShown:
    """A change before it is made.

    Attributes:
        does: what it does, in one sentence.
        confirm: what must be sent as ``confirm``; empty if nothing must.
        token: makes exactly this change, once, within ``seconds``.
        rest: parameters of the next change of this kind, which goes on where this one ends; empty if nothing is left.
    """

    subject: str
    does: str
    notes: tuple[str, ...]
    steps: tuple[StepShown, ...]
    confirm: str
    token: str
    seconds: int
    command: str
    rest: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A change that was shown.

    Attributes:
        token: its token.
        confirm: the name of what is deleted, if the plan asks for it.
    """

    token: str
    confirm: str = ""


@dataclass(frozen=True, slots=True)
class ResultShown:
    """What became of a step: ``done``, ``unchanged``, ``refused``, ``unknown`` or ``not-tried``."""

    target: str
    outcome: str
    text: str


@dataclass(frozen=True, slots=True)
class MadeShown:
    """A change that was made; ``id`` is its name in the audit log."""

    id: str
    subject: str
    does: str
    results: tuple[ResultShown, ...]


def plan_shown(plan: ChangePlan, token: str) -> PlanShown:
    """A plan for the API."""
    return PlanShown(
        plan.subject,
        plan.button.format(**plan.values),
        tuple(text.format(**values) for text, values in plan.notes),
        tuple(map(_step, plan.steps)),
        plan.subject if plan.must_type else "",
        token,
        int(TOKEN_S),
        f"rucola mqadmin {plan.command}" if plan.command else "",
        plan.rest,
    )


def made_shown(made: Made) -> MadeShown:
    """A change that was made, for the API."""
    results = tuple(ResultShown(one.target, one.outcome, one.text) for one in made.results)
    return MadeShown(made.id, made.plan.subject, made.plan.button.format(**made.plan.values), results)


def _step(step: ChangeStep) -> StepShown:
    return StepShown(step.target, step.before, step.after, step.effect.format(**step.values))
