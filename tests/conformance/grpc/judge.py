"""Says of each outcome whether it is as it must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conformance.grpc.accepted import reason
from tests.conformance.grpc.outcomes import Outcomes, differences

EQUAL, MEANT, DIFFERS, BROKEN, NEW, CANNOT = "equal", "meant", "DIFFERS", "BROKEN", "new", "-"


@dataclass(frozen=True)
class Verdict:
    """What is said of one outcome.

    Attributes:
        word: ``EQUAL``; ``MEANT`` if all differences are; ``DIFFERS``; ``BROKEN`` if the scenario broke off; ``NEW`` if
            there is nothing to compare with; ``CANNOT`` if the client cannot do this.
        good: whether it is as it must be.
        lines: the differences, with the reasons of those that are meant.
    """

    word: str
    good: bool
    lines: tuple[str, ...] = ()


def verdicts(found: Outcomes, expected: Outcomes, official: bool) -> dict[tuple[str, str], Verdict]:
    """Compares what clients saw with what they saw of the official server; keys are client and scenario."""
    return {
        (client, name): verdict(name, saw, expected.get(client, {}).get(name), official)
        for client, saws in found.items()
        for name, saw in saws.items()
    }


def verdict(scenario: str, saw: dict[str, Any], wanted: dict[str, Any] | None, official: bool) -> Verdict:
    """Compares one outcome. No difference of the official server is meant, and only that may see something new."""
    if "broken" in saw and (wanted is None or "broken" not in wanted):
        return Verdict(BROKEN, False, (f"broken off: {saw}",))
    if wanted is None and not saw.get("supported", True):
        return Verdict(CANNOT, True)
    if wanted is None:
        return Verdict(NEW, official, ("nothing to compare with",))
    found = list(differences(wanted, saw))
    if not found:
        return Verdict(EQUAL if saw.get("supported", True) else CANNOT, True)
    reasons = [None if official else reason(scenario, difference) for difference in found]
    lines = [
        f"{difference} ({why})" if why else str(difference) for difference, why in zip(found, reasons, strict=True)
    ]
    good = all(reasons)
    return Verdict(MEANT if good else DIFFERS, good, tuple(lines))
