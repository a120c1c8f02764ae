"""Options of the message store, with RocketMQ's keys (``MessageStoreConfig``). Options that RocketMQ does not have are
marked "Rucola's own". Defaults are those of RocketMQ 5.3.3 unless an option's text says otherwise. One default depends
on the command: without a configuration file, ``rucola broker`` and ``rucola up`` use ``SYNC_FLUSH``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rucola.common.options import check_options, option
from rucola.errors import ConfigError


class FlushDiskType(Enum):
    """When the broker responds to a send."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    """The broker responds once the message is in the page cache. The message then survives the end of the process, but
    not a power failure.
    """
    SYNC_FLUSH = "SYNC_FLUSH"
    """The broker writes the message, then syncs the log, and responds once the sync has succeeded."""


class CheckOnRead(Enum):
    """Which messages are compared with their checksums before they are delivered."""

    NONE = "NONE"
    OLD = "OLD"
    """Messages that were stored before the store was opened. Their bytes come from the disk, which may be faulty."""
    ALL = "ALL"


class DamagedMessage(Enum):
    """How a pull treats a damaged message."""

    SKIP = "SKIP"
    """The pull leaves the message out, and the consumer continues after it."""
    STOP = "STOP"
    """The pull ends before the message, and the consumer waits at this message until an operator intervenes."""


@dataclass(frozen=True)
class MessageStoreConfig:
    """The options; each field has its own description. An invalid option raises ``ConfigError``, which names the key,
    the value and what is allowed.
    """

    store_path_root_dir: str = option(
        "storePathRootDir", "~/store", "Store directory. A leading `~` is the home directory."
    )
    store_path_commit_log: str = option(
        "storePathCommitLog",
        "",
        "Directory of the commit log. Empty: `commitlog` in the store directory. With several directories (separated "
        "by `,`), each new segment goes to the next directory.",
    )
    read_only_commit_log_store_paths: str = option(
        "readOnlyCommitLogStorePaths",
        "",
        "Comma-separated list of the commit log directories that get no new segments.",
    )
    mapped_file_size_commit_log: int = option(
        "mappedFileSizeCommitLog",
        1 << 30,
        "Length of a commit log segment. A store keeps the length with which it was created.",
        unit="bytes",
        minimum=4096,
        maximum=(1 << 31) - 1,
    )
    mapped_file_size_consume_queue: int = option(
        "mappedFileSizeConsumeQueue",
        6_000_000,
        "Length of a consume queue segment, rounded up to a multiple of 20.",
        unit="bytes",
        minimum=20,
        maximum=(1 << 31) - 1,
    )
    mapper_file_size_batch_consume_queue: int = option(
        "mapperFileSizeBatchConsumeQueue",
        13_800_000,
        "Length of a segment in a BatchCQ queue, rounded up to a multiple of 46.",
        unit="bytes",
        minimum=46,
        maximum=(1 << 31) - 1,
    )
    enable_consume_queue_ext: bool = option(
        "enableConsumeQueueExt",
        False,
        "Whether each consume queue entry gets an extension with tags code and store time.",
    )
    mapped_file_size_consume_queue_ext: int = option(
        "mappedFileSizeConsumeQueueExt",
        50_331_648,
        "Length of a segment of consume queue extensions.",
        unit="bytes",
        minimum=64,
        maximum=(1 << 31) - 1,
    )
    enable_lmq: bool = option(
        "enableLmq",
        False,
        "Whether a message that names light queues (`%LMQ%...`) gets a queue offset in each of them.",
    )
    enable_multi_dispatch: bool = option(
        "enableMultiDispatch",
        False,
        "Whether each message gets an entry in every light queue that is named in its properties.",
    )
    max_hash_slot_num: int = option(
        "maxHashSlotNum", 5_000_000, "Number of hash slots in an index file.", minimum=1, maximum=500_000_000
    )
    max_index_num: int = option(
        "maxIndexNum",
        20_000_000,
        "Number of entries in an index file. Entry 0 is never used.",
        minimum=2,
        maximum=100_000_000,
    )
    message_index_enable: bool = option("messageIndexEnable", True, "Whether messages are indexed by key.")
    flush_disk_type: FlushDiskType = option(  # noqa: RUF009 - returns a dataclass field, as its neighbours do
        "flushDiskType",
        FlushDiskType.ASYNC_FLUSH,
        "When the broker responds to a send: after the disk sync (SYNC_FLUSH) or before it (ASYNC_FLUSH).",
    )
    flush_interval_commit_log_ms: int = option(
        "flushIntervalCommitLog",
        500,
        "With ASYNC_FLUSH: pause between two disk syncs.",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    flush_commit_log_least_pages: int = option(
        "flushCommitLogLeastPages",
        4,
        "With ASYNC_FLUSH: number of dirty pages of 4 KiB below which no sync happens.",
        unit="pages",
        minimum=0,
        maximum=1 << 20,
    )
    flush_commit_log_thorough_interval_ms: int = option(
        "flushCommitLogThoroughInterval",
        10_000,
        "With ASYNC_FLUSH: time after which a sync happens even if fewer pages than "
        "`flushCommitLogLeastPages` are dirty.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    transient_store_pool_enable: bool = option(
        "transientStorePoolEnable",
        False,
        "Whether messages are written to memory first and to their file by a later commit. With ASYNC_FLUSH, "
        "uncommitted messages are lost when the process is killed; with SYNC_FLUSH, a send waits for commit and sync.",
    )
    transient_store_pool_size: int = option(
        "transientStorePoolSize",
        5,
        "Number of memory buffers in the store pool (`transientStorePoolEnable`). Each buffer is as long as a commit "
        "log segment and locked in memory as far as the system allows.",
        minimum=1,
        maximum=1 << 10,
    )
    fast_fail_if_no_buffer_in_store_pool: bool = option(
        "fastFailIfNoBufferInStorePool",
        False,
        "Whether a send is refused if the pool has no free buffer for the next segment. Otherwise the segment is "
        "written without a buffer.",
    )
    write_without_mmap: bool = option(
        "writeWithoutMmap",
        False,
        "Whether messages are written to the commit log with write calls instead of through the segment's memory map. "
        "Consecutive messages of a topic that arrive in one socket read are written together. Turns "
        "`transientStorePoolEnable` off. Without that pool, messages of 16 KiB and more are written in this way in any "
        "case, if at least 64 KiB of them arrive together.",
    )
    commit_interval_commit_log_ms: int = option(
        "commitIntervalCommitLog",
        200,
        "With a store pool: pause between two commits.",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    commit_commit_log_least_pages: int = option(
        "commitCommitLogLeastPages",
        4,
        "With a store pool: number of uncommitted pages of 4 KiB below which no commit happens.",
        unit="pages",
        minimum=0,
        maximum=1 << 20,
    )
    commit_commit_log_thorough_interval_ms: int = option(
        "commitCommitLogThoroughInterval",
        200,
        "With a store pool: time after which a commit happens even if fewer pages than "
        "`commitCommitLogLeastPages` are uncommitted.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    wake_commit_when_put_message: bool = option(
        "wakeCommitWhenPutMessage",
        True,
        "With a store pool: whether each append triggers a commit immediately instead of at the end of the interval.",
    )
    warm_maped_file_enable: bool = option(
        "warmMapedFileEnable",
        False,
        "Whether the next commit log segment is filled with zeros and locked in memory before it is used.",
    )
    flush_least_pages_when_warm_maped_file: int = option(
        "flushLeastPagesWhenWarmMapedFile",
        4096,
        "With SYNC_FLUSH and `warmMapedFileEnable`: number of zeroed pages after which a sync happens.",
        unit="pages",
        minimum=1,
        maximum=1 << 20,
    )
    sync_flush_timeout_ms: int = option(
        "syncFlushTimeout",
        5000,
        "With SYNC_FLUSH: how long a send waits for its disk sync. After this time the response is FLUSH_DISK_TIMEOUT.",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    flush_interval_consume_queue_ms: int = option(
        "flushIntervalConsumeQueue",
        1000,
        "Pause between two checks of whether consume queues and index need a disk sync.",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    flush_consume_queue_thorough_interval_ms: int = option(
        "flushConsumeQueueThoroughInterval",
        60_000,
        "Time after which consume queues and index are synced. They are also synced after every 256 MiB of commit log.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    file_reserved_time_h: int = option(
        "fileReservedTime",
        72,
        "How long a commit log segment is kept after its last write.",
        unit="h",
        minimum=0,
        maximum=1 << 20,
    )
    delete_when: str = option(
        "deleteWhen", "04", "Hours of the day (local time, separated by `;`) in which expired segments are removed."
    )
    disk_max_used_space_ratio: int = option(
        "diskMaxUsedSpaceRatio",
        75,
        "Disk usage above which expired segments are removed at any hour.",
        unit="%",
        minimum=10,
        maximum=95,
    )
    disk_space_clean_forcibly_ratio: int = option(
        "diskSpaceCleanForciblyRatio",
        85,
        "Disk usage above which the oldest segments are removed before they expire.",
        unit="%",
        minimum=30,
        maximum=85,
    )
    disk_space_warning_level_ratio: int = option(
        "diskSpaceWarningLevelRatio",
        90,
        "Disk usage above which messages are refused, until usage is below `diskSpaceCleanForciblyRatio`.",
        unit="%",
        minimum=35,
        maximum=90,
    )
    clean_file_forcibly_enable: bool = option(
        "cleanFileForciblyEnable", True, "Whether segments may be removed before they expire when space is short."
    )
    delete_file_batch_max: int = option(
        "deleteFileBatchMax",
        10,
        "Largest number of commit log segments that are removed in one pass.",
        minimum=1,
        maximum=1 << 20,
    )
    clean_resource_interval_ms: int = option(
        "cleanResourceInterval",
        10_000,
        "Pause between two checks of disk space and expired segments.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    max_message_size: int = option(
        "maxMessageSize", 4 << 20, "Largest message body.", unit="bytes", minimum=10, maximum=1 << 30
    )
    enabled_append_prop_crc: bool = option(
        "enabledAppendPropCRC",
        True,
        "Whether each record carries a checksum of the whole record. RocketMQ's default is false; its older versions "
        "do not have this option.",
    )
    check_on_read: CheckOnRead = option(  # noqa: RUF009 - as above
        "checkOnRead",
        CheckOnRead.OLD,
        "Which messages are compared with their checksums when they are read: none (NONE), those that were stored "
        "before the broker started (OLD), or all (ALL). RocketMQ compares none. Rucola's own.",
    )
    damaged_message: DamagedMessage = option(  # noqa: RUF009 - as above
        "damagedMessage",
        DamagedMessage.SKIP,
        "What a pull does when it meets a damaged message: leave it out (SKIP), or end before it (STOP). Rucola's own.",
    )
    quarantine: bool = option(
        "quarantine",
        False,
        "If the store is damaged: whether the broker moves the damaged parts to `quarantine/` at start-up and serves "
        "the rest. Otherwise it does not start. RocketMQ drops everything after the damage. Rucola's own.",
    )
    message_delay_level: str = option(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delay of each level, separated by spaces. Units: s, m, h, d.",
    )
    timer_wheel_enable: bool = option(
        "timerWheelEnable", True, "Whether messages may name a delivery time. Otherwise such messages are refused."
    )
    mapped_file_size_timer_log: int = option(
        "mappedFileSizeTimerLog",
        104_857_600,
        "Length of a segment of the timer log.",
        unit="bytes",
        minimum=128,
        maximum=(1 << 31) - 1,
    )
    timer_precision_ms: int = option(
        "timerPrecisionMs",
        1000,
        "Resolution of delivery times. A timer wheel keeps the resolution with which it was created.",
        unit="ms",
        minimum=1,
        maximum=10_000,
    )
    timer_max_delay_sec: int = option(
        "timerMaxDelaySec",
        259_200,
        "Longest delay of a message with a delivery time.",
        unit="s",
        minimum=1,
        maximum=315_360_000,
    )
    timer_roll_window_slot: int = option(
        "timerRollWindowSlot",
        172_800,
        "Number of time steps after which a waiting message is stored again.",
        minimum=2,
        maximum=604_740,
    )
    timer_congest_num_each_slot: int = option(
        "timerCongestNumEachSlot",
        (1 << 31) - 1,
        "If more than this number of messages are due in one time step, the broker refuses a random part of the "
        "further messages for this step. From twice this number on, it refuses all of them.",
        minimum=1,
        maximum=(1 << 31) - 1,
    )
    timer_flush_interval_ms: int = option(
        "timerFlushIntervalMs",
        1000,
        "Pause between two writes of the timer files.",
        unit="ms",
        minimum=10,
        maximum=60_000,
    )
    max_transfer_bytes_on_message_in_memory: int = option(
        "maxTransferBytesOnMessageInMemory",
        262_144,
        "Largest number of bytes in one pull, not counting its first message.",
        unit="bytes",
        minimum=1,
        maximum=1 << 30,
    )
    max_transfer_count_on_message_in_memory: int = option(
        "maxTransferCountOnMessageInMemory", 32, "Largest number of messages in one pull.", minimum=1, maximum=1 << 20
    )
    max_transfer_bytes_on_message_in_disk: int = option(
        "maxTransferBytesOnMessageInDisk",
        65_536,
        "Largest number of bytes in one pull, for messages no longer in memory, not counting the first one.",
        unit="bytes",
        minimum=1,
        maximum=1 << 30,
    )
    max_transfer_count_on_message_in_disk: int = option(
        "maxTransferCountOnMessageInDisk",
        8,
        "Largest number of messages in one pull, for messages that are no longer in memory.",
        minimum=1,
        maximum=1 << 20,
    )
    access_message_in_memory_max_ratio: int = option(
        "accessMessageInMemoryMaxRatio",
        40,
        "Percentage of the machine's memory that the newest part of the commit log is assumed to occupy.",
        unit="%",
        minimum=1,
        maximum=100,
    )
    max_filter_message_size: int = option(
        "maxFilterMessageSize",
        16_000,
        "Largest number of bytes of consume queue entries that one pull examines. But a pull that asks for n messages "
        "may always examine n entries.",
        unit="bytes",
        minimum=20,
        maximum=1 << 26,
    )
    max_msgs_num_batch: int = option(
        "maxMsgsNumBatch", 64, "Largest number of messages that one query by key returns.", minimum=1, maximum=1 << 20
    )
    default_query_max_num: int = option(
        "defaultQueryMaxNum",
        32,
        "Largest number of messages that a query by unique key looks for.",
        minimum=1,
        maximum=1 << 20,
    )

    def __post_init__(self) -> None:
        check_options(self, self._check_paths, self._check_pool, self._check_hours, self._check_levels)

    def _check_paths(self) -> None:
        if not self.store_path_root_dir:
            raise ConfigError("storePathRootDir", "", "a directory")
        read_only = split_paths(self.read_only_commit_log_store_paths)
        paths = split_paths(self.store_path_commit_log)
        if self.store_path_commit_log and not set(paths) - set(read_only):
            raise ConfigError(
                "storePathCommitLog",
                self.store_path_commit_log,
                "directories that are not in readOnlyCommitLogStorePaths",
            )

    def _check_pool(self) -> None:
        if self.fast_fail_if_no_buffer_in_store_pool and self.transient_store_pool_size < 2:
            # A segment keeps its buffer until the next segment has one, so one buffer is never enough.
            allowed = "2 or more with fastFailIfNoBufferInStorePool"
            raise ConfigError("transientStorePoolSize", str(self.transient_store_pool_size), allowed)

    def _check_hours(self) -> None:
        if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in self.delete_when.split(";")):
            raise ConfigError("deleteWhen", self.delete_when, "hours from 0 to 23, separated by ;")

    def _check_levels(self) -> None:
        delay_levels_ms(self.message_delay_level)

    @property
    def consume_queue_segment_bytes(self) -> int:
        """Length in bytes of a consume-queue segment: the configured length, rounded up to whole units of 20 bytes."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20

    @property
    def batch_consume_queue_segment_bytes(self) -> int:
        """Length in bytes of a segment of a batch consume queue: the configured length, rounded up to whole units of 46
        bytes.
        """
        return -(-self.mapper_file_size_batch_consume_queue // 46) * 46

    @property
    def pooled(self) -> bool:
        """Whether messages go to a memory buffer before the file."""
        return self.transient_store_pool_enable and not self.write_without_mmap

    @property
    def sync_flush(self) -> bool:
        """Whether the response to a send waits for a sync."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


def split_paths(text: str) -> list[str]:
    """Returns the directories of ``storePathCommitLog`` or ``readOnlyCommitLogStorePaths``."""
    return [path.strip() for path in text.split(",") if path.strip()]


def delay_levels_ms(text: str) -> list[int]:
    """Returns the delays of ``messageDelayLevel`` in milliseconds, level 1 first.

    Raises:
        ConfigError: an entry does not consist of digits followed by s, m, h or d.
    """
    units_ms = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    levels: list[int] = []
    for entry in text.split():
        digits, unit = entry[:-1], entry[-1]
        if unit not in units_ms or not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise ConfigError("messageDelayLevel", text, "digits with s, m, h or d, separated by spaces")
        levels.append(int(digits) * units_ms[unit])
    return levels


FORMER_KEYS = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
"""Keys that RocketMQ 4.x spelled differently, with today's spelling."""


def in_todays_words(values: Mapping[str, str]) -> dict[str, str]:
    """Returns ``values`` with the keys of RocketMQ 4.x replaced by today's names. The broker and all tools read a
    configuration through this function, so that they agree on the sizes of files.

    Raises:
        ConfigError: a key has different values under its old and its new name.
    """
    renamed = {key: text for key, text in values.items() if key not in FORMER_KEYS}
    for former, key in FORMER_KEYS.items():
        if former in values and values[former] != renamed.setdefault(key, values[former]):
            raise ConfigError(
                former, values[former], f"the same value as {key} ({values[key]}), or only one of the two keys"
            )
    return renamed
