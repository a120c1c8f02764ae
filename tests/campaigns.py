"""Runs what is too long for the tests: ``python -m tests.campaigns [NAME] [SIZE=NUMBER ...] [--again]``.

Without a name, lists the campaigns with their sizes. A campaign has steps; a step that has passed on this very tree is
not run again, so that an interrupted campaign continues. The results are in ``build/campaigns``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tools.run_tests import ROOT, digest_of

RESULTS = ROOT / "build" / "campaigns"


class Campaign(NamedTuple):
    """A campaign.

    Attributes:
        text: what it shows.
        steps: arguments of ``python -m``; ``{SIZE}`` stands for a size.
        sizes: the usual sizes.
        needs: what a machine needs beside Python and Java.
    """

    text: str
    steps: tuple[str, ...]
    sizes: Mapping[str, int | str] = {}
    needs: str = ""


CAMPAIGNS = {
    "crash": Campaign(
        "power cuts, failing calls and kills of stores, brokers and pairs of them; hostile directories; flipped bits",
        (
            "tests.crash.explore --states {STATES}",
            "tests.crash.broker_explore --states {BROKER_STATES}",
            "tests.crash.pair_explore --states {PAIR_STATES}",
            "tests.crash.broker_kills --rounds {KILLS}",
            "tests.crash.hostile --variants 500",
            "tests.crash.bitflips --variants 400",
        ),
        {"STATES": 100_000, "BROKER_STATES": 10_000, "PAIR_STATES": 100_000, "KILLS": 12},
    ),
    "faults": Campaign(
        "each use of a client x each event, in virtual time, every promise checked by a ledger; then every kind of "
        "consumer through killed brokers, lost connections, clocks set back",
        ("tests.scenario.matrix", "tests.scenario.consumer_faults --seeds {SEEDS}"),
        {"SEEDS": 5},
    ),
    "lake": Campaign(
        "tables on SeaweedFS, which is built first: a kill between every two requests, every request lost, refused and "
        "cut; all jobs on two workers; orders of archive, compaction and change; killed runs",
        (
            "tests.lake.s3_server build",
            "pytest --tb=native tests/lake",
            "tests.lake.request_kills",
            "tests.lake.cluster",
            "tests.spark.lake goldens",
            "tests.spark.lake schedules --count {SCHEDULES}",
            "tests.lake.changes --count {CHANGES}",
            "tests.spark.lake kills --count 20",
            "tests.spark.lake moments --count 50",
        ),
        {"SCHEDULES": 1000, "CHANGES": 200},
        "Go 1.26, 17 minutes of CPU and 2.2 GB of memory, once",
    ),
    "conformance": Campaign(
        "official clients, tools and stores against ours, and ours against the official ones",
        (
            "tests.conformance.store.run",
            "tests.conformance.store.pending",
            "tests.conformance.replica --version 4.9.7 --version 5.3.3 --version 5.5.0",
            "tests.conformance.analytics --seconds {CALM}",
            "tests.conformance.rejoin",
            "tests.conformance.ha_master --version 4.9.7 --version 5.3.3 --version 5.5.0",
            "tests.conformance.ha_master --control",
            "tests.conformance.ha_slave",
            "tests.conformance.acting",
            "tests.conformance.ha_etcd",
            "tests.conformance.console_messages",
            "tests.conformance.ha_controller",
            "tests.conformance.run",
            "tests.conformance.cluster",
            "tests.conformance.python_client",
            "tests.conformance.guarded",
            "tests.conformance.grpc_port",
            "tests.conformance.grpc.run --peer rucola --peer rucola-proxy",
            "tests.conformance.grpc.many --messages {MESSAGES}",
            "tests.conformance.grpc.two_doors --seconds {SECONDS}",
            "tests.conformance.grpc.two_doors --official",
            "tests.conformance.lite.peers",
            "tests.conformance.lite.peers --peer rucola-proxy",
            "tests.conformance.lite.tools",
            "tests.conformance.lite.client",
            "tests.conformance.lite.exchange",
            "tests.conformance.examples",
            "tests.conformance.admin.run",
            "tests.conformance.spark",
        ),
        {"MESSAGES": 100_000, "SECONDS": 600, "CALM": 30},
        needs="Maven, Node.js, Go, Rust, and their registries",
    ),
    "bitflips": Campaign(
        "flipped bits in stores of RocketMQ and ours, held against what the official store serves",
        ("tests.crash.bitflips --variants {FLIPS}",),
        {"FLIPS": 2000},
    ),
    "damages": Campaign(
        "damages of every field and kind: does verify name file and field, and does a start serve at least what the "
        "official store serves? Lost sectors: does any reader deliver wrong bytes?",
        (
            "tests.crash.damages --variants {DAMAGES}",
            "tests.crash.damage_starts --variants {DAMAGES}",
            "tests.crash.lost_ends --variants {SECTORS}",
        ),
        {"DAMAGES": 2000, "SECTORS": 4000},
    ),
    "kills": Campaign(
        "kills of driver, executor, worker and broker under Spark streams; one of two brokers away for a minute",
        (
            "tests.spark.kills --to table --kills {KILLS}",
            "tests.spark.kills --to topic --kills 20",
            "tests.spark.outage",
        ),
        {"KILLS": 30},
    ),
    "threads": Campaign(
        "a store with real threads, killed or stopped every few seconds",
        ("tests.crash.threads --minutes {MINUTES}",),
        {"MINUTES": 30},
    ),
    "fuzz": Campaign(
        "changed inputs for the decoders, and 1 % as many for running servers",
        ("tests.fuzz --inputs {INPUTS}",),
        {"INPUTS": 10_000_000},
    ),
    "tenants": Campaign(
        "requests of every code from a low account, while its neighbours send",
        ("tests.fuzz.tenants --requests {REQUESTS}",),
        {"REQUESTS": 1_000_000},
    ),
    "directories": Campaign(
        "hostile store directories for every command and start, hostile tables for jobs in Spark",
        (
            "tests.attack.directories --cases {CASES} --state build/directories.seed",
            "tests.attack.spark_directories --cases {SPARK_CASES} --state build/spark-directories.seed",
        ),
        {"CASES": 2000, "SPARK_CASES": 150},
    ),
    "siege": Campaign(
        "a random mix of 65 attacks beside three canaries; single ones: python -m tests.attack.siege --attack NAME",
        ("tests.attack.siege --mix {MINUTES}",),
        {"MINUTES": 30},
    ),
    "soak": Campaign(
        "half the maximum rate, consumers coming and going; with --publish by hand, into docs/",
        ("bench.soak --minutes {MINUTES}",),
        {"MINUTES": 30},
    ),
    "rebuild": Campaign(
        "queues and index of many messages in 200 topics: our start, store rebuild, spark rebuild",
        ("bench.rebuild --messages {MESSAGES}",),
        {"MESSAGES": 20_000_000},
    ),
    "whole": Campaign(
        "all tests at their whole size: power cuts at more steps, more random examples, Spark as users run it",
        ("pytest --tb=native --whole --numprocesses {PROCESSES} --dist loadfile --no-loadscope-reorder",),
        {"PROCESSES": 4},
    ),
    "repeat": Campaign(
        "make test and make test-more, again and again while the machine is busy; names what fails only sometimes; "
        "PART=test or PART=more repeats one of both",
        ("tools.repeat_tests --times {TIMES} --burn {BURN} --part {PART}",),
        {"TIMES": 20, "BURN": 1, "PART": "all"},
    ),
    "fallbacks": Campaign(
        "tests of client, broker and offline reader where a system has nothing of what only Linux has",
        ("tests.fallbacks --numprocesses 2 -k 'not uvloop'",),
    ),
    "clusters": Campaign(
        "the archive of rucola spark package on a standalone master, local-cluster and Spark Connect; the template in "
        "examples/pipeline under both of its runners",
        ("tests.spark.cluster", "tests.spark.pipelines"),
    ),
    "sample": Campaign(
        "the shop in examples/ with its own 100 tests, a broker each",
        ("pytest --rootdir examples/shop -p no:cacheprovider examples/shop",),
    ),
    "lab": Campaign(
        "the engine laboratory: all lessons, report into docs/lab/; small, normal or large, on a quiet machine",
        ("rucola lab report --size {SIZE} --out docs/lab --dir build",),
        {"SIZE": "normal"},
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a campaign, or lists all; returns the exit code of the step that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", choices=CAMPAIGNS)
    parser.add_argument("sizes", nargs="*", metavar="SIZE=NUMBER")
    parser.add_argument("--again", action="store_true", help="also the steps that have passed on this tree")
    options = parser.parse_args(arguments)
    if options.name is None:
        print("\n".join(map(described, CAMPAIGNS)))
        return 0
    campaign = CAMPAIGNS[options.name]
    given = dict(one.partition("=")[::2] for one in options.sizes)
    if unknown := given.keys() - campaign.sizes.keys():
        parser.error(f"{options.name} has no size {', '.join(sorted(unknown))}; it has {', '.join(campaign.sizes)}")
    sizes = {**campaign.sizes, **given}
    return run(options.name, [step.format(**sizes) for step in campaign.steps], options.again)


def described(name: str) -> str:
    """Name, sizes and text of a campaign."""
    campaign = CAMPAIGNS[name]
    sizes = " ".join(f"{size}={number}" for size, number in campaign.sizes.items())
    return f"{name} {sizes}".rstrip() + f"\n    {campaign.text}" + (f"; needs {campaign.needs}" * bool(campaign.needs))


def run(name: str, steps: list[str], again: bool = False, results: Path = RESULTS) -> int:
    """Runs the steps that have not passed on this tree; returns the exit code of the first that fails."""
    noted, tree = results / f"{name}.json", digest_of(ROOT)
    found = json.loads(noted.read_text()) if noted.exists() and not again else {}
    passed: dict[str, str] = found["passed"] if found.get("tree") == tree else {}
    results.mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(steps, 1):
        if step in passed:
            print(f"{name} {number}/{len(steps)}: {step}: {passed[step]}", flush=True)
            continue
        print(f"{name} {number}/{len(steps)}: {step}", flush=True)
        begun = time.monotonic()
        code = subprocess.run([sys.executable, "-m", *shlex.split(step)], cwd=ROOT, check=False).returncode
        if code:
            print(f"{name} {number}/{len(steps)}: failed with exit code {code}", flush=True)
            return code
        passed[step] = f"passed at {time.strftime('%Y-%m-%d %H:%M:%S')} in {time.monotonic() - begun:.0f} s"
        noted.write_text(json.dumps({"tree": tree, "passed": passed}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
