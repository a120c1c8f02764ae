"""Draws the table of request codes and roles from the rules in the code: ``python tools/acl_table.py [--check]``.

The table is in ``docs/security.md`` between two marks. With ``--check`` nothing is written, and the exit status is 1 if
the table in the page differs from the code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- access table: begin -->", "<!-- access table: end -->"

sys.path.insert(0, str(ROOT / "src"))

from rucola.broker.acl.permission import DENY, PUB, SUB, Account  # noqa: E402
from rucola.broker.acl.requirements import REQUIREMENTS, describe  # noqa: E402
from rucola.broker.requests import ACCOUNT_REQUESTS, REQUESTS, USER_REQUESTS  # noqa: E402
from rucola.controller.processor import CHANGING as CONTROLLER_CHANGING  # noqa: E402
from rucola.controller.processor import READING as CONTROLLER_READING  # noqa: E402
from rucola.namesrv.administration import REQUESTS as NAMESRV_REQUESTS  # noqa: E402
from rucola.namesrv.namesrv import READING  # noqa: E402
from rucola.protocol.codes import RequestCode  # noqa: E402
from rucola.proxy.door import SERVED  # noqa: E402

SENT_AS_ROWS = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
}
"""Requests that a broker serves without an entry in its tables of requests."""
NAMESRV_OWN = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
}
"""Requests that a name server serves without an entry in its table of administrative requests."""


def _needs_of_calls() -> dict[str, str]:
    """What the calls of the gRPC port need, by their names."""
    publish, subscribe = "PUB on topic", "SUB on topic and group"
    asked = {
        "AckMessage": (RequestCode.ACK_MESSAGE,),
        "ChangeInvisibleDuration": (RequestCode.CHANGE_MESSAGE_INVISIBLETIME,),
        "ForwardMessageToDeadLetterQueue": (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.ACK_MESSAGE),
        "EndTransaction": (RequestCode.END_TRANSACTION,),
        "RecallMessage": (RequestCode.RECALL_MESSAGE,),
    }
    return {
        "QueryRoute": "PUB or SUB on topic",
        "QueryAssignment": subscribe,
        "SendMessage": publish,
        "ReceiveMessage": subscribe,
        "Telemetry": f"settings: {publish}, for each; or {subscribe}, for each",
        "Heartbeat": "as the settings of the client",
        "NotifyClientTermination": "nothing but its own client",
        "SyncLiteSubscription": subscribe,
        **{name: "as " + " and ".join(f"`{code.name}`" for code in codes) for name, codes in asked.items()},
    }


def rendered() -> str:
    """The tables, which stand between ``BEGIN`` and ``END``."""
    lines = [
        "| request to a broker | code | needs | publisher | consumer | administrator |",
        "|---|---|---|---|---|---|",
    ]
    served = SENT_AS_ROWS | {RequestCode(code) for code in (*REQUESTS, *ACCOUNT_REQUESTS, *USER_REQUESTS)}
    for code in sorted(served | (set(RequestCode) & set(REQUIREMENTS))):
        marks = [_mark(code, PUB, DENY), _mark(code, SUB, SUB)]
        lines.append(f"| `{code.name}` | {int(code)} | {describe(code)} | {marks[0]} | {marks[1]} | yes |")
    lines.append("| every other | | administrator | - | - | yes |")
    lines += ["", "| request to a name server | code | needs |", "|---|---|---|"]
    for code in sorted({RequestCode(code) for code in NAMESRV_REQUESTS} | NAMESRV_OWN | READING):
        needs = "nothing" if code in READING else "administrator"
        lines.append(f"| `{code.name}` | {int(code)} | {needs} |")
    lines.append("| every other | | administrator |")
    lines += ["", "| request to a controller | code | needs |", "|---|---|---|"]
    for code in sorted(CONTROLLER_CHANGING | CONTROLLER_READING):
        needs = "nothing" if code in CONTROLLER_READING else "administrator"
        lines.append(f"| `{code.name}` | {int(code)} | {needs} |")
    lines.append("| every other | | administrator |")
    lines += ["", "| call of the gRPC port | needs |", "|---|---|"]
    needs_of_calls = _needs_of_calls()
    if set(needs_of_calls) != SERVED:
        raise SystemExit(f"the needs of gRPC calls are not those of {sorted(set(needs_of_calls) ^ SERVED)}")
    lines += [f"| `{name}` | {needs} |" for name, needs in sorted(needs_of_calls.items())]
    return "\n".join(lines)


def _mark(code: int, topics: int, groups: int) -> str:
    """``yes`` if an account that has these permissions for every resource may send request ``code``, otherwise
    ``-``.
    """
    needs = REQUIREMENTS.get(code)
    if needs is None:
        return "-"
    account = Account("", b"", default_topic_perm=topics, default_group_perm=groups)
    return "yes" if all(account.allows(resource) for need in needs for resource in need.example()) else "-"


def main(arguments: list[str]) -> int:
    """Writes the table, or with ``--check`` says whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the document is not current")
    options = parser.parse_args(arguments)
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    current = f"{head}{BEGIN}\n{rendered()}\n{END}{tail}"
    if current == text:
        return 0
    if options.check:
        print(f"{DOCUMENT.relative_to(ROOT)}: the access table differs from the code; run make docs", file=sys.stderr)
        return 1
    DOCUMENT.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
