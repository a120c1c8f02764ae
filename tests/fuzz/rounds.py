"""Rounds: all inputs that belong to a seed are passed to a target."""

from __future__ import annotations

from functools import cache
from random import Random

from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS


def run_round(name: str, seed: int, count: int) -> None:
    """Runs ``count`` inputs of one seed; raises ``Failure`` at the first that fails."""
    target = TARGETS[name]
    mutator = mutator_of(name)
    random = Random(f"{name} {seed}")
    for number in range(count):
        data = mutator.draw(random)
        try:
            target.check(data, number)
        except Exception as error:
            raise Failure(name, seed, number, data) from error


@cache
def mutator_of(name: str) -> Mutator:
    return TARGETS[name].mutator()


class Failure(AssertionError):  # noqa: N818 - what it says
    """Raised if a target did something that its input must not cause."""

    def __init__(self, name: str, seed: int, number: int, data: bytes) -> None:
        super().__init__(f"target {name!r}, seed {seed}, input {number}: {data!r}")
        self.name, self.seed, self.number, self.data = name, seed, number, data
