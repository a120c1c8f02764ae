"""What serves the requests that cannot be judged at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rucola.broker.cold_reads import ColdReads
from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness.json_bodies import JsonBodies
from rucola.remoting.server import Channel


class LateRequests(NamedTuple):
    """Passed to the guard with each batch; some requests can be judged only after a read."""

    cold_reads: ColdReads
    """Reads the message to which a request refers."""
    json_bodies: JsonBodies
    """Reads long bodies."""
    process: Callable[[Channel, RemotingCommand], None]
    """Serves a request that was found to be allowed."""
