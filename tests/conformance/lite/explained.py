"""Differences between RocketMQ's servers and Rucola's that are meant, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.conformance.lite.compare import Difference


@dataclass(frozen=True)
class Explained:
    """A difference that is meant.

    Attributes:
        scenario: its name.
        theirs, ours: patterns of all lines of the two sides, see ``Difference``.
        why: the reason.
    """

    scenario: str
    theirs: str
    ours: str
    why: str

    def explains(self, scenario: str, found: Difference) -> bool:
        """Whether this is such a difference."""
        return (
            scenario == self.scenario
            and re.fullmatch(self.theirs, found.theirs, re.DOTALL) is not None
            and re.fullmatch(self.ours, found.ours, re.DOTALL) is not None
        )


ATTEMPTS = "the attempts of messages that come again together with new ones are told right"
DEAD = "no dead letter comes back into its lite topic, which goes on"
GONE_ON = "offsets go on where the name ended, as long as a record of it may be in the log"
KEPT = "a client that repeats its own subscription keeps it"
EVICTED = "a client that lost a lite topic does not get it back by its old set"
COUNTED = "the broker's own numbers: sizes of its tables, lite topics with messages"
SETTINGS = "a receive is served as the group is, since settings may be at another proxy"
NAMED = "an unknown group or parent is named, and refused before something is kept"
LEFT = "a lite topic that was left is not delivered any more"
LEFT_OUT = "names that no lite topic has are left out: the others count"
WHOLE = "a group of all lite topics gets those that it has not read, also old ones, each from its first message on"
ANY = "messages of a wildcard group go to any of its clients: here to one that waits, and Python asks a second later"
SUSPENSION = r"(by hand: (receives: [(\[]+b'again and again'[^\n]*|changes, suspend \w+: 20000)\n?)*"
NUMBERS = r" ADDRESS \w+ 20000( \d+){6}"
EXPLAINED: tuple[Explained, ...] = (
    Explained("dead", r"java: F has seen .*", r"java: F has seen .*always fails:2 .*behind it:2", ATTEMPTS),
    Explained("dead", r"java: O has seen .*", r"java: O has seen (\S+ it:1 )?(\S+always fails:[123] ?){3}(\S+ it:1)?",
              DEAD),
    Explained("dead", r"java: O has seen .*",
              r"java: O has seen \S+:after it:1 (\S+always fails:[123] ){3}\S+:behind it:1", DEAD),
    Explained("exclusive", r"by hand: was sent: notify_unsubscribe_lite_command .*owned.*", r"by hand: was sent: None",
              KEPT),
    Explained("exclusive", r"java: B has seen owned:for B:1", r"java: B has seen owned:for B:1 owned:for whom:1",
              EVICTED),
    Explained("exclusive", r"by hand: receives: \[b'for whom'\]", r"by hand: receives: \[\]", EVICTED),
    Explained("admin", rf" {NUMBERS}", rf" {NUMBERS}", COUNTED),
    Explained("admin", r"  broker-a 60 \d+ \d+ \[.*\]", r"  broker-a 60 \d+ \d+ \[.*\]", COUNTED),
    Explained("admin", r"  broker-a 1 TIME N/A", r"  broker-a 1 TIME TIME", "the time of the last delivery is known"),
    Explained("admin", r"", r"  1 session-1 1 TIME", "lags by time are told without an option"),
    Explained("admin", r"", r"  broker-a dispatched", "a dispatch that succeeded is told"),
    Explained("admin", r".*200077 .*'maxCount': 0}: 1", r".*200077 .*'maxCount': 0}: 29",
              "a number out of range is a wrong parameter, not an error of the system"),
    Explained("expire", rf" {NUMBERS}", rf" {NUMBERS}", COUNTED),
    Explained("expire", r"  broker-a 1 0 \d+ \[brief-group\]", r"  broker-a 1 0 \d+ \[brief-group\]", COUNTED),
    Explained("expire", r"  broker-a 0 0 - true 0", r"  broker-a 2 2 - true 0", GONE_ON),
    Explained("expire", r"  broker-a 0 1 TIME true 1", r"  broker-a 2 3 TIME true 1", GONE_ON),
    Explained("invalid", r"by hand: receives: \(50001, \[\]\)", r"by hand: receives: \((20000|4\d+), \[.*\]\)",
              SETTINGS),
    Explained("invalid", r"by hand: LITE_SIMPLE_CONSUMER of .*: 40015", r"by hand: LITE_SIMPLE_CONSUMER of .*: 20000",
              "lite simple consumers, which RocketMQ has from 5.5.1 on, are served"),
    Explained("invalid", r"by hand: (PARTIAL_REMOVE|COMPLETE_ADD) of '': 50001", r"by hand: \w+ of '': 20000",
              LEFT_OUT),
    Explained("invalid", r"by hand: odd names: 1", r"by hand: odd names: 0", LEFT_OUT),
    Explained("invalid", r"by hand: an unknown action: 50001", r"by hand: an unknown action: 40000",
              "what a client did wrong is its error"),
    Explained("invalid", r"by hand: receives 33: 20000", r"by hand: receives 33: 40401", LEFT),
    Explained("invalid", r"by hand: pops with 0 messages: 210", r"by hand: pops with 0 messages: 29",
              "a pop of no message is a wrong parameter"),
    Explained("invalid", r"by hand: \w+_ADD (by an unknown group: 604|of an unknown parent: 0)",
              r"by hand: \w+_ADD (by an unknown group: 26|of an unknown parent: 17)", NAMED),
    Explained("many", r"by hand: receives each: \(fewer, \{1\}\)", r"by hand: receives each: \(1500, \{1\}\)",
              "RocketMQ's broker passes a client's lite topics on by the hundred, each 10 s"),
    Explained("many", r"by hand: receives: 20000", r"by hand: receives: 40401", LEFT),
    Explained("ordered", r"by hand: pops with the same attempt id: \(210, ''\)",
              r"by hand: pops with the same attempt id: \(0, '0;0;0'\)", "a repeated pop gets its batch again"),
    Explained("ordered", r"by hand: pops.*: \(0, '0 qo0%1 (\d);0 qo0%2 \1'\)", r"by hand: pops.*: \(0, '(\d);\1'\)",
              "each message has its count"),
    Explained("quota", r"by hand: the same again: 42902", r"by hand: the same again: 20000",
              "a lite topic that a client has is no new one"),
    Explained("quota", r"by hand: two by a complete set: 20000", r"by hand: two by a complete set: 42902",
              "a complete set counts like single names"),
    Explained("reconnect", r"java: A has seen session-4:after the connections ended:1 .*",
              r"java: A has seen session-4:after the connections ended:2 .*",
              "the subscription stays: the pop that the broker held took the message, which comes again after 1 s"),
    Explained("suspend", r"by hand: receives: \[\(b'again and again', 1\), .*\]",
              r"by hand: receives: \[\(b'again and again', [34]\), .*\]", ATTEMPTS),
    Explained("suspend", SUSPENSION, SUSPENSION, "a suspension costs no attempt, also the first one"),
    Explained("wildcard", r"java: W has seen .*",
              r"java: W has seen .*opt-tail:zero:1 .*session-1:java 0:1 .*wild-1:before any other client:1.*", WHOLE),
    Explained("wildcard", r"python: W has seen.*", r"python: W has seen.*", ANY),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What is to say about one scenario.

    Attributes:
        lines: number of lines that clients saw.
        reasons: reasons of the differences that are meant.
        unexplained: the other differences.
    """

    scenario: str
    lines: int
    reasons: tuple[str, ...]
    unexplained: tuple[Difference, ...]

    @property
    def word(self) -> str:
        """``equal``, ``explained`` or ``DIFFERENT``."""
        return "DIFFERENT" if self.unexplained else "explained" if self.reasons else "equal"


def judged(scenario: str, lines: int, found: Sequence[Difference], known: Sequence[Explained] = EXPLAINED) -> Verdict:
    """Explains what can be explained."""
    reasons: dict[str, None] = {}
    unexplained = []
    for one in found:
        reason = next((entry.why for entry in known if entry.explains(scenario, one)), None)
        if reason is None:
            unexplained.append(one)
        else:
            reasons[reason] = None
    return Verdict(scenario, lines, tuple(reasons), tuple(unexplained))
