"""What idle lite topics cost the official message store, with queues in files: for ``bench.lite_store --official``.

A process of its own puts the messages, without a broker; another one opens the store and stops it again. What the
process takes without a single lite topic is subtracted.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tools.peers.packages import PEERS, ROOT, PeerError, java_program, need

VERSION = "5.5.0"
_PROGRAM = ROOT / "tests" / "conformance" / "store" / "java"
_OPENS = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")


def official(directory: Path, names: list[bytes], body: bytes) -> dict[str, float]:
    """Fills a store with one message for each lite topic, and opens it again.

    Args:
        names: ``<parent>$<lite>`` of each.

    Raises:
        PeerError: the official store cannot be fetched, or failed.
    """
    lines = directory / "lines"
    text = body.decode()
    lines.write_text(
        "\n".join(f"put\tagents\t0\tINNER_MULTI_DISPATCH\\1%LMQ%${name.decode()}\\2\t{text}" for name in names)
    )
    none = directory / "none"
    none.write_text("state")
    _run(directory / "empty", none)  # makes the files of a store
    base_s, base_bytes = _run(directory / "empty", none)
    fill_s, fill_bytes = _run(directory / "store", lines)
    open_s, open_bytes = _run(directory / "store", none)
    queues = (path for path in (directory / "store" / "consumequeue").rglob("*") if path.is_file())
    count = len(names)
    return {
        "fill_s": fill_s - base_s,
        "memory_bytes": (fill_bytes - base_bytes) / count,
        "disk_bytes": sum(path.stat().st_blocks * 512 for path in queues) / count,
        "open_clean_s": open_s - base_s,
        "open_memory_bytes": (open_bytes - base_bytes) / count,
    }


def _run(store: Path, lines: Path) -> tuple[float, int]:
    """Opens the store, does what the lines say, and stops it; returns seconds and the most resident memory in bytes."""
    options = {
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "enableLmq": "true",
        "enableMultiDispatch": "true",
        "maxLmqConsumeQueueNum": 1_000_000,
        "messageIndexEnable": "false",
        "haListenPort": 0,
    }
    java = need("java", "install Java 17 to run the official message store")
    command = [
        java,
        "-Xms512m",
        "-Xmx2g",
        f"-Duser.home={PEERS}",
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
    ]
    command += [
        "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
        "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
    ]
    command += ["-cp", java_program(_PROGRAM, VERSION), "stores.StoreReader", str(lines)]
    command += [f"{name}={value}" for name, value in options.items()]
    begin = time.perf_counter()
    with (store.parent / "official.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise PeerError((store.parent / "official.log").read_text(errors="replace")[-2000:])
    return time.perf_counter() - begin, usage.ru_maxrss << 10
