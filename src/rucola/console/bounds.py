"""Refusals of what takes up a place for a while, such as live tails and exports."""

from __future__ import annotations


class TooManyError(Exception):
    """There are as many as there may be, for this visitor or in all; ``args[0]`` says of what, and what helps."""


class Places:
    """Counts what runs, for each visitor and in all. Event loop only.

    Args:
        of_visitor_max: largest number for one visitor.
        count_max: largest number in all.
        refusal: text of the error.
    """

    def __init__(self, of_visitor_max: int, count_max: int, refusal: str) -> None:
        self._of_visitor_max, self._count_max, self._refusal = of_visitor_max, count_max, refusal
        self._taken: list[str] = []

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, visitor: str) -> None:
        """Takes a place, which the caller gives back.

        Raises:
            TooManyError: there is none.
        """
        if self._taken.count(visitor) >= self._of_visitor_max or len(self._taken) >= self._count_max:
            raise TooManyError(self._refusal)
        self._taken.append(visitor)

    def give_back(self, visitor: str) -> None:
        """Gives a place back."""
        self._taken.remove(visitor)
