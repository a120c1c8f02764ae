"""The figures of request 28, under RocketMQ's names (5.3.3, ``AdminBrokerProcessor#prepareRuntimeInfo``).

Figures that only RocketMQ measures are left out: latencies of single puts, pulls that found nothing, the transient
store pool, timer messages. Two figures are Rucola's own: ``storeState`` and ``longestTurnMs``, the longest turn of the
event loop in the last one to two minutes.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.broker_stats import Rate
from rucola.broker.services import BrokerServices
from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.common.mq_version import CURRENT_VERSION
from rucola.errors import DiskError, FormatError
from rucola.formats.message import decode_message
from rucola.store.log.cold_read import ColdRecords
from rucola.store.results import StoreState


class RuntimeInfo:
    """Gathers the figures: a table with the name of each figure and its value as text.

    Args:
        sends_waiting: returns the number of batches of responses that wait for a sync of the log.
    """

    def __init__(self, services: BrokerServices, sends_waiting: Callable[[], int]) -> None:
        self._services = services
        self._sends_waiting = sends_waiting

    def __call__(self, cold: ColdRecords) -> dict[str, str]:
        """The table; ``cold`` is as in ``MessageStore.message_at``.

        Raises:
            NotInMemoryError: the first message of the log must be fetched from the disk.
        """
        store, stats = self._services.store, self._services.stats
        put_total, got_total = store.stats.put_messages, store.stats.got_messages
        uptime_s = max(self._services.clock.wall_ms() - stats.started_ms, 0) // 1000
        got = _rates(stats.broker_gets())
        return {
            "brokerVersionDesc": CURRENT_VERSION.name,
            "brokerVersion": str(int(CURRENT_VERSION)),
            "brokerActive": _text(store.state is StoreState.RUNNING),
            "storeState": store.state.value,
            "longestTurnMs": f"{self._services.loop_watch.longest_s * 1000:.0f}",
            "bootTimestamp": str(stats.started_ms),
            "startAcceptSendRequestTimeStamp": str(stats.started_ms),
            "runtime": _duration(uptime_s),
            "putTps": _rates(stats.broker_puts()),
            "getFoundTps": got,
            "getTransferredTps": got,
            "putMessageTimesTotal": str(put_total),
            "msgPutTotalTodayNow": str(put_total),
            "msgPutTotalTodayMorning": str(stats.put_today_morning),
            "msgPutTotalYesterdayMorning": str(stats.put_yesterday_morning),
            "msgGetTotalTodayNow": str(got_total),
            "msgGetTotalTodayMorning": str(stats.got_today_morning),
            "msgGetTotalYesterdayMorning": str(stats.got_yesterday_morning),
            "commitLogMinOffset": str(store.min_offset),
            "commitLogMaxOffset": str(store.max_offset),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "remainHowManyDataToFlush": _size(store.max_offset - store.flushed_offset),
            "earliestMessageTimeStamp": str(self._earliest_ms(cold)),
            **self._disk(),
            **self._queues(),
            **self._delays(),
        }

    def _earliest_ms(self, cold: ColdRecords) -> int:
        store = self._services.store
        record = store.message_at(store.min_offset, cold)
        try:
            return decode_message(record).store_timestamp_ms if record is not None else -1
        except FormatError:
            return -1

    def _disk(self) -> dict[str, str]:
        root, files = self._services.store.root, self._services.files
        path = f"{root}/commitlog"
        try:
            used, usable = files.disk_usage(path if files.exists(path) else root)
        except DiskError:
            return {}
        ratio = f"{used / max(used + usable, 1):.2f}"
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{path}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_size(used + usable)}, Free : {_size(usable)}.",
        }

    def _queues(self) -> dict[str, str]:
        """The lengths and limits of RocketMQ's request queues. This broker has no such queues.

        The length of the send queue is the number of batches of responses that wait for a sync of the log. The other
        lengths are always 0: pulls that wait for a read from the disk are not counted. The lock time is always 0,
        because no request waits for a lock on the page cache.
        """
        config = self._services.config
        waiting = {
            "send": (self._sends_waiting(), config.send_thread_pool_queue_capacity),
            "pull": (0, config.pull_thread_pool_queue_capacity),
            "litePull": (0, config.pull_thread_pool_queue_capacity),
        }
        table = {"pageCacheLockTimeMills": "0"}
        for name, (size, capacity) in waiting.items():
            table[f"{name}ThreadPoolQueueSize"] = str(size)
            table[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return table

    def _delays(self) -> dict[str, str]:
        topic = SCHEDULE_TOPIC.encode()
        store, schedule = self._services.store, self._services.schedule
        ends = {level: store.max_queue_offset(topic, level - 1) for level in range(1, schedule.level_count + 1)}
        return {
            f"scheduleMessageOffset_{level}": f"{schedule.progress(level)},{end}" for level, end in ends.items() if end
        }


def _text(value: bool) -> str:
    return "true" if value else "false"


def _rates(rates: tuple[Rate, Rate, Rate]) -> str:
    """Rates over a minute, an hour and a day. RocketMQ gives rates over ten seconds, a minute and ten minutes under the
    same names.
    """
    return " ".join(f"{rate.per_second:.2f}" for rate in rates)


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(size: int) -> str:
    """Formats with a binary unit: ``267 B``, ``1.0 KiB``."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
