"""Serves requests that send messages (10, 310, 320): checks, appends, responds. See RocketMQ 5.3.3,
``SendMessageProcessor``.

The unit of work is a run: consecutive requests of one socket read that send single messages to the same topic. Each
request is a row of the frame table. Usually a few calls of Cython kernels inspect, append and answer all rows of a run,
however long it is. A row without a UNIQ_KEY, or with a property on which the broker acts, such as DELAY, is rewritten
into a one-row table and then processed in the same way. There is therefore only one path to the store.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Callable

from rucola.broker.checked_topics import CheckedTopic
from rucola.broker.flush_waiters import Confirmation
from rucola.broker.lite.sending import LiteRows, refuse_in_batch
from rucola.broker.processor.dead_letter import DeadLetterRule
from rucola.broker.processor.inner_batch import inner_batch
from rucola.broker.processor.send_response import SendResponses, flush_not_confirmed
from rucola.broker.processor.send_rewrite import Detour, Rewriter, row_of_command
from rucola.broker.property_gate import admitted_text
from rucola.broker.services import BrokerServices
from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, SendTrait, new_table
from rucola.common.key_builder import is_retry_topic
from rucola.common.message_const import KEY_SEPARATOR, KEYS
from rucola.common.sysflag import TRANSACTION_MASK, MessageSysFlag
from rucola.errors import BrokerError
from rucola.formats.light_queue import lite_name
from rucola.formats.message import expand_batch, inspect_rows
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel
from rucola.store.results import LightPlace, PutMessageStatus
from rucola.store.row_run import AS_THEY_ARE, AppendOptions, RowRun

_TOPIC_POS = int(FrameColumn.TOPIC_POS)
_TOPIC_LEN = int(FrameColumn.TOPIC_LEN)
_QUEUE_ID = int(FrameColumn.QUEUE_ID)
_SYS_FLAG = int(FrameColumn.SYS_FLAG)
_TRAITS = int(FrameColumn.TRAITS)
_PHYSICAL_OFFSET = int(FrameColumn.PHYSICAL_OFFSET)
_RECORD_SIZE = int(FrameColumn.RECORD_SIZE)
_UNIQ_KEY_LEN = int(FrameColumn.UNIQ_KEY_LEN)
_TOGETHER = AppendOptions(suffix=b"", together=True)
_NO_WAIT = int(SendTrait.NO_WAIT)
_ILLEGAL = int(SendTrait.ILLEGAL)
_LITE = int(SendTrait.LITE)
_SPECIAL = int(SendTrait.SPECIAL | SendTrait.LITE)
_BODY_LEN = int(FrameColumn.BODY_LEN)
_MULTI_TAGS = int(MessageSysFlag.MULTI_TAGS)
_BROKERS_FLAGS = TRANSACTION_MASK | int(MessageSysFlag.INNER_BATCH)
"""Flags that only brokers set; a topic of batches has the second one."""
_KEYS = re.compile(rb"(?:^|\x02)" + KEYS.encode() + rb"\x01([^\x02]*)")
_UNCLEAN = int(SendTrait.NO_UNIQ_KEY | SendTrait.ILLEGAL | SendTrait.PRIORITY) | _SPECIAL
_BATCH_MEMBER_BYTES_MIN = 22
_SLOW_ROWS = 16
"""Largest number of rows that one call of ``process_run`` processes one by one; each takes 20 to 100 µs."""
_BATCH_ROWS = 1024
"""Number of rows in the permanent table for the members of a batch. If a batch has more members, larger tables are
tried until the members fit. Each of these tables is ``_BATCH_ROWS_FACTOR`` times as large as the last. The largest one
is kept for the next batches, because its 10 MiB of new memory cost a fifth of the time of a batch. The next batch that
fits into the permanent table frees it.
"""
_BATCH_ROWS_FACTOR = 8
BATCH_MESSAGES_MAX = 32_768
"""Maximum number of messages in a batch. Storing so many takes about 30 ms, in which no other request is served, and
their ids fill a header of 1 MiB.
"""
BATCH_KEYS_MAX = 131_072
"""Maximum number of keys of all messages in a batch. Their entries in the index take up to 40 ms."""
_ADMITTED_MEMBERS_MAX = 2048
"""Maximum number of messages in a batch from which properties are removed; this takes about 10 µs each."""
_MORE_ROWS = -2
IN_SYNC_REPLICAS_NOT_ENOUGH = "in-sync replicas not enough"
"""Remark with which RocketMQ refuses a message, too."""
_TOPIC_BYTES_MAX = 127


class SendMessageProcessor:
    """Serves sends: rows of kind SEND and BATCH in the frame table, and requests with unusual headers. Event loop only.

    Args:
        rewriter: rewrites messages that are not stored as they came.
        confirmation: what responses wait for; None without SYNC_FLUSH and SYNC_MASTER.
        refuses: whether sends must be refused, because too few slaves are in sync; None if they never are.

    Attributes:
        checked: the topics of sends.
    """

    def __init__(
        self,
        services: BrokerServices,
        rewriter: Rewriter,
        confirmation: Confirmation | None,
        refuses: Callable[[], bool] | None,
    ) -> None:
        store, topics, groups = services.store, services.topics, services.groups
        self._store = store
        self._dead_letters = DeadLetterRule(topics, groups, services.locks)
        self._responses = SendResponses(services.config, store.store_host)
        self._confirmation, self._refuses = confirmation, refuses
        self._monotonic = services.clock.monotonic
        self._rewriter = rewriter
        self._body_bytes_max = store.config.max_message_size
        self.checked = services.checked_topics
        self._members = self._few_members = new_table(_BATCH_ROWS)

    def process_run(self, channel: Channel, run: RowRun) -> int:
        """Processes rows of kind SEND.

        Returns:
            The first row that was not processed. Rows that must be processed one by one take long, so a call processes
            only some of them.
        """
        topic = self._find_topic(channel, run)
        source, _, table, first, last = run
        if topic is None:
            return last
        traits = inspect_rows(source, table, first, last, self._body_bytes_max, topic.queues)
        is_fast = topic.plain and (not traits or (traits == _NO_WAIT and self._confirmation is None))
        if is_fast and (self._refuses is None or not self._refuses()):
            self._append(channel, run, topic, wait=True)
            return last
        if traits & _LITE and topic.plain and (self._refuses is None or not self._refuses()):
            stored = self._append_lite_rows(channel, run, topic)
            if stored > first:
                return stored
        began_s = self._monotonic()
        last = min(last, first + _SLOW_ROWS)
        for row in range(first, last):
            self._process_row(channel, run._replace(first=row, last=row + 1), topic)
        channel.note_cost(self._monotonic() - began_s)
        return last

    def process_batch(self, channel: Channel, run: RowRun) -> None:
        """Processes the first row, which is of kind BATCH: either all of its messages are stored consecutively, or
        none.

        The members keep their own properties. RocketMQ adds the properties of the batch, and so gives all members the
        same UNIQ_KEY. A topic of type BatchCQ gets one record for all members.
        """
        began_s = self._monotonic()
        source, view, table, row, _ = run
        topic = self._find_topic(channel, run)
        if topic is None:
            return
        try:
            members, count, wait = self._expand(channel, source, table, row, topic)
            self._check_replicas(wait)
            if topic.config.is_batch_queue and table[row * ROW_WIDTH + _UNIQ_KEY_LEN] > 0:
                self._append_inner_batch(channel, source, table, row, count, wait, topic)
                return
            of_members = RowRun(source, view, members, 0, count)
            status = self._store.append_rows(of_members, topic.name, channel.host, _TOGETHER)
            if status is not PutMessageStatus.PUT_OK:
                raise self._refusal(status)
        except BrokerError as refusal:
            self._responses.refuse(channel, table, row, refusal)
            return
        answer = self._responses.encode_batch(source, table, row, members, count)
        self._deliver(channel, answer, _end_of(members, count - 1), wait, topic)
        channel.note_cost(self._monotonic() - began_s)

    def process_command(self, channel: Channel, command: RemotingCommand) -> None:
        """Processes a send with an unusual header, or to a retry topic.

        Raises:
            FormatError: a required field is missing or not a number.
        """
        self._dead_letters.apply(command)
        run = row_of_command(command)
        if run.table[FrameColumn.KIND] == FrameKind.BATCH:
            self.process_batch(channel, run)
        else:
            self.process_run(channel, run)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _find_topic(self, channel: Channel, run: RowRun) -> CheckedTopic | None:
        """The topic of the rows. If sends to it are refused, answers the producers and returns None."""
        source, _, table, first, last = run
        base = first * ROW_WIDTH
        position = table[base + _TOPIC_POS]
        name = bytes(source[position : position + table[base + _TOPIC_LEN]])
        topic = self.checked.known(name)
        if topic is not None:
            return topic
        position = table[base + FrameColumn.DEFAULT_TOPIC_POS]
        default_topic = str(
            source[position : position + table[base + FrameColumn.DEFAULT_TOPIC_LEN]], "utf-8", "replace"
        )
        try:
            return self.checked.find(name, default_topic, table[base + FrameColumn.DEFAULT_TOPIC_QUEUES])
        except BrokerError as refusal:
            for row in range(first, last):
                self._responses.refuse(channel, table, row, refusal)
            return None

    def _expand(
        self, channel: Channel, source: bytearray, table: array[int], row: int, topic: CheckedTopic
    ) -> tuple[array[int], int, bool]:
        """Returns the members of a batch as rows, their number, and whether the response waits for a sync.

        The rows are valid until the next call.
        """
        base = row * ROW_WIDTH
        if is_retry_topic(topic.config.topic_name) or len(topic.name) > _TOPIC_BYTES_MAX:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic.config.topic_name}"
            )
        table[base + _QUEUE_ID] = self.checked.choose_queue(table[base + _QUEUE_ID], channel, topic)
        refused = TRANSACTION_MASK if topic.config.is_batch_queue else _BROKERS_FLAGS
        if table[base + _SYS_FLAG] & refused:
            raise _forbidden_flags(table[base + _SYS_FLAG])
        if topic.multi_tags:
            table[base + _SYS_FLAG] |= _MULTI_TAGS
        body_bytes = table[base + _BODY_LEN]
        if body_bytes > self._body_bytes_max:
            raise self._illegal()
        envelope_traits = inspect_rows(source, table, row, row + 1, self._body_bytes_max, topic.queues)
        if envelope_traits & _SPECIAL:
            refuse_in_batch(_properties_of(source, table, base))
        rows_max = min(max(body_bytes, 0) // _BATCH_MEMBER_BYTES_MIN, BATCH_MESSAGES_MAX)
        members = self._members
        rows = min(rows_max, len(members) // ROW_WIDTH)
        while (count := expand_batch(source, table, row, members, rows)) == _MORE_ROWS:
            if rows == BATCH_MESSAGES_MAX:
                raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"a batch of more than {BATCH_MESSAGES_MAX} messages")
            rows = min(rows_max, rows * _BATCH_ROWS_FACTOR)
            members = self._members = new_table(rows)
        if count <= _BATCH_ROWS:
            self._members = self._few_members
        if count <= 0:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the body is not a sequence of messages")
        traits = inspect_rows(source, members, 0, count, self._body_bytes_max, topic.queues)
        if traits & _ILLEGAL:
            raise self._illegal()
        if traits & _SPECIAL:
            self._admit_members(source, members, count, topic)
        if body_bytes > BATCH_KEYS_MAX:
            _check_keys(source, table[base + FrameColumn.BODY_POS], body_bytes, members, count)
        return members, count, not envelope_traits & _NO_WAIT

    def _admit_members(self, source: bytearray, members: array[int], count: int, topic: CheckedTopic) -> None:
        """Removes from the members of a batch the properties that only the broker sets. The text of a member becomes
        shorter in its place.

        Raises:
            BrokerError: a member has a property that clients may not send.
        """
        name = topic.config.topic_name
        traits = members[_TRAITS : count * ROW_WIDTH : ROW_WIDTH]
        special = [number * ROW_WIDTH for number, found in enumerate(traits) if found & _SPECIAL]
        if len(special) > _ADMITTED_MEMBERS_MAX:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"more than {_ADMITTED_MEMBERS_MAX} messages of the batch have properties of brokers",
            )
        for base in special:
            start, length = members[base + FrameColumn.PROPERTIES_POS], members[base + FrameColumn.PROPERTIES_LEN]
            text = admitted_text(bytes(source[start : start + length]), name)
            refuse_in_batch(decode_properties(text))
            source[start : start + len(text)] = text
            members[base + FrameColumn.PROPERTIES_LEN] = len(text)

    def _check_replicas(self, wait: bool) -> None:
        """Refuses a message that is to wait for slaves if too few are in sync.

        Raises:
            BrokerError: SYSTEM_ERROR, upon which clients try another broker.
        """
        if wait and self._refuses is not None and self._refuses():
            raise BrokerError(ResponseCode.SYSTEM_ERROR, IN_SYNC_REPLICAS_NOT_ENOUGH)

    def _illegal(self) -> BrokerError:
        return BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self._body_bytes_max}B, msg properties length limit 32KB.",
        )

    def _refusal(self, status: PutMessageStatus) -> BrokerError:
        if status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED):
            return self._illegal()
        if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the store is {self._store.state.value}"
            )
        return BrokerError(ResponseCode.SYSTEM_ERROR, status.value)

    # -- append and answer ---------------------------------------------------------------------------------------------

    def _process_row(self, channel: Channel, run: RowRun, topic: CheckedTopic) -> None:
        """Processes the only row of a run that cannot be stored together with others."""
        source, _, table, row, _ = run
        base = row * ROW_WIDTH
        traits = table[base + _TRAITS]
        detour: Detour | None = None
        light: LightPlace | None = None
        try:
            self._check_replicas(not traits & _NO_WAIT)
            table[base + _QUEUE_ID] = self.checked.choose_queue(table[base + _QUEUE_ID], channel, topic)
            if topic.multi_tags:
                table[base + _SYS_FLAG] |= _MULTI_TAGS
            if topic.keys_required and KEYS not in _properties_of(source, table, base):
                raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
            if table[base + FrameColumn.BODY_LEN] <= 0:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, "the message has no body")
            if traits & _ILLEGAL:
                raise self._illegal()
            if traits & _UNCLEAN:
                run, detour, light = self._rewriter.rewrite(source, table, row, topic.config)
                source, _, table, row, _ = run
                if inspect_rows(source, table, 0, 1, self._body_bytes_max, topic.queues) & _ILLEGAL:
                    raise self._illegal()
            if table[row * ROW_WIDTH + _SYS_FLAG] & _BROKERS_FLAGS:
                raise _forbidden_flags(table[row * ROW_WIDTH + _SYS_FLAG])
        except BrokerError as refusal:
            self._responses.refuse(channel, table, row, refusal)
            return
        if light is None:
            self._append(channel, run, topic, not traits & _NO_WAIT, detour)
        else:
            place = array("q", (light.queue_offset,))
            self._append_lite(channel, LiteRows(run, [lite_name(light.queue)], place), topic, not traits & _NO_WAIT)

    def _append_inner_batch(
        self,
        channel: Channel,
        source: bytearray,
        table: array[int],
        row: int,
        count: int,
        wait: bool,
        topic: CheckedTopic,
    ) -> None:
        """Stores batch ``row`` as one record that holds ``count`` messages, and answers it."""
        common = decode_properties(self._store.property_suffix)
        result = self._store.put_message(inner_batch(source, table, row, count, topic.name, common, channel.host))
        if result.status is not PutMessageStatus.PUT_OK:
            raise self._refusal(result.status)
        base = row * ROW_WIDTH
        table[base + _PHYSICAL_OFFSET], table[base + _RECORD_SIZE] = result.physical_offset, result.size
        table[base + FrameColumn.QUEUE_OFFSET] = result.queue_offset
        answer = self._responses.encode_inner_batch(source, table, row)
        self._deliver(channel, answer, _end_of(table, row), wait, topic)

    def _append(
        self, channel: Channel, run: RowRun, topic: CheckedTopic, wait: bool, detour: Detour | None = None
    ) -> None:
        """Stores rows that passed every check, and answers them.

        Args:
            wait: whether the responses wait for disk and slaves.
            detour: the topic in which a single row waits before it goes to ``topic``.
        """
        source, _, table, first, done = run
        if detour is None:
            status = self._store.append_rows(run, topic.name, channel.host)
        else:
            status = self._store.append_rows(run, detour.topic, channel.host, AS_THEY_ARE)
            table[first * ROW_WIDTH + _QUEUE_ID] = detour.asked_queue_id
        if status is not PutMessageStatus.PUT_OK:
            done = self._refuse_last(channel, table, first, done, status)
        if done > first:
            if detour is not None and detour.recall_handle:
                answers: bytes | bytearray = self._responses.encode_recallable(
                    source, table, first, detour.recall_handle
                )
            else:
                answers = self._responses.encode(source, table, first, done)
            self._deliver(channel, answers, _end_of(table, done - 1), wait, topic)

    def _append_lite_rows(self, channel: Channel, run: RowRun, topic: CheckedTopic) -> int:
        """Stores and answers the first rows that belong to lite topics and need nothing else; returns the row after
        them.
        """
        rows = self._rewriter.lite.address_rows(run, topic.config, no_wait=self._confirmation is None)
        if rows is None:
            return run.first
        self._append_lite(channel, rows, topic, wait=True)
        return run.first + rows.run.last

    def _append_lite(self, channel: Channel, rows: LiteRows, topic: CheckedTopic, wait: bool) -> None:
        """Stores rows that belong to lite topics, and answers them."""
        source, _, table, first, done = rows.run
        status = self._store.append_lite(rows.run, topic.name, channel.host, rows.names, rows.queue_offsets)
        if status is not PutMessageStatus.PUT_OK:
            done = self._refuse_last(channel, table, first, done, status)
        if done > first:
            answers = self._responses.encode(source, table, first, done)
            self._deliver(channel, answers, _end_of(table, done - 1), wait, topic)

    def _refuse_last(self, channel: Channel, table: array[int], first: int, last: int, status: PutMessageStatus) -> int:
        """Refuses the last rows, which were not stored; returns the row after those that were."""
        refusal = self._refusal(status)
        while last > first and table[(last - 1) * ROW_WIDTH + _PHYSICAL_OFFSET] == -1:
            last -= 1
            self._responses.refuse(channel, table, last, refusal)
        return last

    def _deliver(self, channel: Channel, answers: bytes | bytearray, end: int, wait: bool, topic: CheckedTopic) -> None:
        if not answers:
            return
        registration = topic.registration
        if registration is not None and registration.done():
            topic.registered()
            registration = None
        if registration is None:
            self._answer(channel, answers, end, wait)
        else:
            registration.add_done_callback(lambda told: self._answer(channel, _judged(answers, told), end, wait))

    def _answer(self, channel: Channel, answers: bytes | bytearray, end: int, wait: bool) -> None:
        confirmation = self._confirmation
        if wait and confirmation is not None and not confirmation.passed(end):
            confirmation.add(end, channel, answers)
        else:
            channel.send(answers)


def _forbidden_flags(sys_flag: int) -> BrokerError:
    """The refusal of a message with flags that only brokers set; its record would never reach its consumers."""
    refusal = "the message has transaction flags, but is not part of a transaction"
    if not sys_flag & TRANSACTION_MASK:
        refusal = "the message has the flag of a batch, but is none"
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, refusal)


def _judged(answers: bytes | bytearray, told: asyncio.Future[None]) -> bytes | bytearray:
    """Returns ``answers``; if ``told`` failed, the same responses with FLUSH_DISK_TIMEOUT. ``told`` fails if the
    creation or change of the topic could not be written to the disk.
    """
    error = None if told.cancelled() else told.exception()
    return answers if error is None else flush_not_confirmed(answers, f"the topic cannot be stored: {error}")


def _properties_of(source: bytearray, table: array[int], base: int) -> dict[str, str]:
    start = table[base + FrameColumn.PROPERTIES_POS]
    return decode_properties(source[start : start + max(table[base + FrameColumn.PROPERTIES_LEN], 0)])


def _check_keys(source: bytearray, start: int, length: int, members: array[int], count: int) -> None:
    """Refuses a batch whose messages together have too many keys. Each key takes a byte of the properties and, but for
    the first of a message, a separator, so few batches are looked at closely.

    Args:
        start, length: place of the batch's body.

    Raises:
        BrokerError: MESSAGE_ILLEGAL.
    """
    separator = KEY_SEPARATOR.encode()
    if (
        sum(members[FrameColumn.PROPERTIES_LEN : count * ROW_WIDTH : ROW_WIDTH]) <= BATCH_KEYS_MAX
        or source.count(separator, start, start + length) + count <= BATCH_KEYS_MAX
    ):
        return
    keys = 0
    for base in range(0, count * ROW_WIDTH, ROW_WIDTH):
        at, size = members[base + FrameColumn.PROPERTIES_POS], members[base + FrameColumn.PROPERTIES_LEN]
        found = _KEYS.search(source[at : at + size])
        keys += sum(map(bool, found[1].split(separator))) if found is not None else 0
        if keys > BATCH_KEYS_MAX:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"a batch with more than {BATCH_KEYS_MAX} keys")


def _end_of(table: array[int], row: int) -> int:
    """Physical offset after the record of ``row``."""
    base = row * ROW_WIDTH
    return table[base + _PHYSICAL_OFFSET] + table[base + _RECORD_SIZE]
