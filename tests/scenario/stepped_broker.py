"""``rucola`` with a wall clock that SIGUSR1 sets back by ``STEP_MS``.

``python -m tests.scenario.stepped_broker`` takes the arguments of ``rucola``.
"""

from __future__ import annotations

import signal

from rucola.cli.main import run
from rucola.runtime.clock import SystemClock

STEP_MS = 5_000
"""Milliseconds by which SIGUSR1 sets the clock back; delayed retries and invisible messages come this much later."""


def main() -> None:
    """Runs ``rucola``."""
    wall_ms_of_system = SystemClock.wall_ms
    steps: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: steps.append(STEP_MS))
    SystemClock.wall_ms = lambda clock: wall_ms_of_system(clock) - sum(steps)  # type: ignore[method-assign]
    run()


if __name__ == "__main__":
    main()
