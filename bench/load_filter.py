"""Load program that uses our evaluator of SQL92 filters. It has the arguments of ``FilterLoad.java``.

Each line on standard input is the number of messages of one round, which is rounded up to whole batches.
"""

from __future__ import annotations

import json
import sys
import time
from array import array

from rucola.filter.sql import compile_sql

BATCH = 256
"""Number of messages that each call evaluates; a broker evaluates about as many per read of a queue."""


def main(text: str, *property_texts: str) -> None:
    """Runs rounds until the input ends."""
    expression = compile_sql(text)
    source = bytearray()
    places = array("q")
    for number in range(BATCH):
        properties = property_texts[number % len(property_texts)].replace("=", "\x01").replace(";", "\x02").encode()
        places.extend((len(source), len(properties)))
        source += properties
    outcomes = bytearray(BATCH)
    print("{}", flush=True)
    for line in sys.stdin:
        batches = -(-int(line) // BATCH)
        passed = 0
        start = time.perf_counter()
        for _ in range(batches):
            passed += expression.match(source, places, BATCH, outcomes)
        seconds = time.perf_counter() - start
        print(json.dumps({"messages": batches * BATCH, "seconds": seconds, "passed": passed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
