"""Whether a request with a correct signature of version 2 is fresh: meant for this server, and not seen before.

Signed are the address or name that the client asked for, the time and a nonce. The nonces are only in memory, so
requests from before the start are refused. A client may repeat them with a new signature; this concerns only clients
whose clock is behind, until their time has reached the start. A client whose clock is ahead signs times after the start
of the next run. The highest such time of each account is kept in the store, and the next run refuses times up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rucola.broker.acl.address_strategy import address_of
from rucola.broker.acl.replay import WINDOW_S, NonceTable
from rucola.common.hosts import is_loopback, split_address
from rucola.common.json_library import orjson
from rucola.errors import FormatError
from rucola.protocol.signature import SIGN_NONCE, SIGN_TARGET, SIGN_TIME, TOO_EARLY
from rucola.remoting.server import Channel
from rucola.runtime.clock import Clock
from rucola.runtime.table_writer import Keep, Pieces

_TARGET = "acl-target"


class Freshness:
    """Accepts each request once, here only. Event loop only.

    Args:
        clock: gives the time with which the times in signatures are compared.
        hosts: names and addresses of this machine, besides the addresses that its connections have.
        addresses: further ``host:port`` under which clients reach this server, separated by commas.
    """

    def __init__(self, clock: Clock, hosts: Iterable[str] = (), addresses: str = "") -> None:
        self._clock = clock
        self._hosts = frozenset(host.lower() for host in hosts if host)
        self._addresses = frozenset(address.strip().lower() for address in addresses.split(","))
        self._nonces = NonceTable()
        self._ahead: dict[str, int] = {}
        """For each account, the latest signed time that was after the broker's time; wall-clock ms."""
        self._floors: dict[str, int] = {}
        """For each account, the time of ``_ahead`` in the last run."""
        self._changed = False
        self.begin()

    def begin(self) -> None:
        """From now on, requests that were signed earlier are refused."""
        self._start_ms, self._start_s = self._clock.wall_ms(), self._clock.monotonic()

    def keep(self, keep: Keep) -> None:
        """Sets the table in which the times of clients with a fast clock are kept."""
        self._kept = keep(self._snapshot, self._written)

    def load(self, content: bytes | None) -> None:
        """Reads the table of the last run.

        Raises:
            FormatError: it is damaged.
        """
        latest_ms = self._clock.wall_ms() + round(WINDOW_S * 1000)
        try:
            times = orjson.loads(content)["ahead"] if content else {}
            self._floors = {str(name): min(int(time_ms), latest_ms) for name, time_ms in times.items()}
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError("signed times", 0, "an object with times by account", repr(error)[:64]) from error
        self._ahead = dict(self._floors)

    def persist(self) -> None:
        """Requests a write of the table if it has changed."""
        if self._changed:
            self._changed = False
            self._kept.changed()

    def refusal(self, channel: Channel, account: str, fields: Mapping[str, str]) -> str:
        """Why a request with a correct signature is refused; empty if it is accepted, which uses up its nonce.

        After a reason that begins with ``TOO_EARLY``, a repetition may succeed.
        """
        target = fields.get(SIGN_TARGET)
        if target is None:
            return f"access denied: {SIGN_TARGET} is missing, which clients sign since they bind a request to a server"
        if channel.attributes.get(_TARGET) != target:
            if not self._is_here(target, channel.local_address):
                return f"access denied: {SIGN_TARGET} {target[:64]} is not an address of this server"
            channel.attributes[_TARGET] = target
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
        text = fields.get(SIGN_TIME, "")
        if not text.isascii() or not text.isdigit() or len(text) > 15 or abs(int(text) - now_ms) > WINDOW_S * 1000:
            return f"access denied: {SIGN_TIME} is more than {WINDOW_S:.0f} s away from the broker's time {now_ms}"
        time_ms, age_s = int(text), now_s - self._start_s
        if (time_ms < self._start_ms and age_s < WINDOW_S) or (
            time_ms <= self._floors.get(account, 0) and age_s < 2 * WINDOW_S
        ):
            return f"{TOO_EARLY}, try again; the server's time is {now_ms}"
        if not self._nonces.take(account, fields.get(SIGN_NONCE, ""), now_s):
            return f"access denied: {SIGN_NONCE} was used, is too old or malformed, or the account has too many clients"
        if time_ms > now_ms and time_ms > self._ahead.get(account, 0):
            self._ahead[account] = time_ms
            self._changed = True
        return ""

    def _is_here(self, target: str, local: str) -> bool:
        """Whether a client that has reached this server at ``local`` may call it ``target``."""
        if target.lower() in self._addresses:
            return True
        try:
            host, port = split_address(target)
            if port != split_address(local)[1]:
                return False
        except ValueError:
            return False
        name, address = host.lower(), address_of(target)
        if address and address == address_of(local):
            return True
        return name in self._hosts or (name == "localhost" and is_loopback(local))

    def _snapshot(self) -> Pieces:
        now_ms = self._clock.wall_ms()
        self._ahead = {name: time_ms for name, time_ms in self._ahead.items() if time_ms > now_ms}
        return [orjson.dumps({"ahead": self._ahead})]

    def _written(self, error: Exception | None) -> None:
        self._changed = self._changed or error is not None
