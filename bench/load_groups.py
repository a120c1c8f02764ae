"""Load program with many consumer groups on one queue: each group gets every message through long polls.

Arguments: broker address, prefix of the topics. Each line on standard input, ``MESSAGES GROUPS``, starts one round,
which prints one JSON line; its ``messages`` are the delivered ones. Sixteen messages are sent at once, and the next
ones follow when all groups have them. A latency is the time from a send until one group has the messages.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from array import array

from bench.load_client import quantiles, say
from bench.load_lockstep import Work, prepared
from bench.load_polls import POLL_MS, SUSPEND_AND_SUBSCRIPTION
from bench.lockstep import Lockstep
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameReader
from rucola.protocol.headers.pull import PullMessageRequestHeader

WINDOW = 16


class Member:
    """The only member of a group: a connection with one pull that waits."""

    def __init__(self, address: str, topic: str, number: int, queue_offset: int) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.queue_offset = queue_offset
        self._reader = FrameReader()
        self._topic, self._group = topic, f"bench_group_{number}"
        self._poll()

    def take(self) -> None:
        """Reads what has arrived; a complete response is followed by the next pull.

        Raises:
            ConnectionError: the broker refused the pull, or closed the connection.
        """
        count = self.socket.recv_into(self._reader.buffer())
        if not count:
            raise ConnectionError("the broker closed the connection")
        batch = self._reader.received(count)
        if batch is not None:
            answer = batch.head(batch.count - 1)
            if "nextBeginOffset" not in answer.ext_fields:
                raise ConnectionError(f"pull refused: {answer.code} {answer.remark}")
            self.queue_offset = int(answer.ext_fields["nextBeginOffset"])
            self._poll()

    def _poll(self) -> None:
        header = PullMessageRequestHeader(
            self._group, self._topic, 0, self.queue_offset, 32, SUSPEND_AND_SUBSCRIPTION, 0, POLL_MS, 0, "*", "TAG"
        )
        self.socket.sendall(RemotingCommand(RequestCode.PULL_MESSAGE, 1, ext_fields=header.to_ext_fields()).encode())


class Groups:
    """A producer and the groups, which come and go between rounds."""

    def __init__(self, address: str, prefix: str) -> None:
        self._address, self._topic = address, f"{prefix}0"
        self._producer = Lockstep(address)
        ((self._frames, _),) = prepared(prefix, Work(0, WINDOW, queues=1))
        self._members: list[Member] = []
        self._selector = selectors.DefaultSelector()
        self._end = 0

    def round(self, messages: int, groups: int) -> dict[str, float]:
        """Sends at least this many messages to so many groups; returns what the line of output says."""
        self._resize(groups)
        latencies_ns = array("q")
        start, first = time.perf_counter(), self._end
        while self._end - first < messages:
            self._end += WINDOW
            start_ns = time.perf_counter_ns()
            self._producer.send(self._frames, WINDOW)
            self._wait(latencies_ns, start_ns)
        seconds = time.perf_counter() - start
        facts = {"messages": (self._end - first) * groups, "failed": self._producer.failed, "seconds": seconds}
        self._producer.begin()
        return facts | quantiles(latencies_ns)

    def _wait(self, latencies_ns: array[int], start_ns: int) -> None:
        behind = len(self._members)
        while behind:
            for key, _ in self._selector.select():
                member: Member = key.data
                before = member.queue_offset
                member.take()
                if before < self._end <= member.queue_offset:
                    latencies_ns.append(time.perf_counter_ns() - start_ns)
                    behind -= 1

    def _resize(self, groups: int) -> None:
        while len(self._members) > groups:
            member = self._members.pop()
            self._selector.unregister(member.socket)
            member.socket.close()
        while len(self._members) < groups:
            member = Member(self._address, self._topic, len(self._members), self._end)
            self._selector.register(member.socket, selectors.EVENT_READ, member)
            self._members.append(member)


def main(broker: str, prefix: str) -> None:
    """Runs rounds until the input ends; the topic must be empty."""
    groups = Groups(broker, prefix)
    say({"ready": 1})
    for line in sys.stdin:
        messages, count = map(int, line.split())
        say(groups.round(messages, count))


if __name__ == "__main__":
    main(*sys.argv[1:])
