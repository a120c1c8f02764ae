"""Keeps the tables of a slave in step with those of its master (RocketMQ 5.3.3, ``SlaveSynchronize``).

What a table says must be true of the log beside it: if a table says that a message was delivered, the log must have the
delivered record, or the message is lost when the slave becomes the master. So tables with progress wait until the
slave has synced all that the master had when they were asked for. RocketMQ does not wait.

A topic that the master has deleted loses its queues here, too, once two copies in a row lack it. Then the end of the
master's log between them tells which records belong to the old topic, should it be made again.

A table that is the same as before is neither decoded nor written. Every table is replaced as a whole, and at once.
Event loop only; threads decode and compare.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rucola.broker.ha.master_broker import LogBounds, MasterBroker
from rucola.broker.lazy_pop_services import MODES
from rucola.broker.lite import slave_rows
from rucola.common.data_version import DataVersion
from rucola.errors import BrokerError, FormatError, RucolaError
from rucola.formats.tables import decode_consumer_offsets, decode_delay_offsets, encode_delay_offsets
from rucola.formats.timer import TIMER_CHECKPOINT, TimerCheckpoint
from rucola.protocol.bodies.configs import SubscriptionGroupWrapper
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.runtime.logs import event
from rucola.runtime.table_writer import KeptTable, Pieces

if TYPE_CHECKING:
    from rucola.broker.services import BrokerServices

logger = logging.getLogger(__name__)
_DELAYS, _TIMERS = "delayOffset.json", "timercheck"
_EMPTY_MODES = b'{"messageRequestModeMap":{}}'
_CONFIGURATION = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
_PROGRESS = (
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)


class SlaveTables:
    """The tables.

    Args:
        services: the services of the broker, which have the tables.
        synced: waits until the slave has synced its log up to a physical offset; returns False if that cannot be.
    """

    def __init__(self, services: BrokerServices, synced: Callable[[int], Awaitable[bool]]) -> None:
        self._services = services
        self._synced = synced
        self._bodies: dict[RequestCode, bytes] = {}
        """The body that was taken over last, of each table."""
        self._failed: set[RequestCode] = set()
        self._vanished: set[str] = set()
        """Topics that the last copy lacked for the first time."""
        self._gone: dict[str, int] = {}
        """The same topics of earlier copies, and where the master's log ended after the copy."""
        self._lite_row, self._has_pages = 0, True
        """Where the next page of lite topics begins, and whether the master has pages."""
        self._take: dict[RequestCode, Callable[[bytes], Awaitable[None]]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._take_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._take_groups,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._take_modes,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._take_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._take_delays,
            RequestCode.GET_TIMER_CHECK_POINT: self._take_timers,
        }
        self._directory = f"{services.store.root}/config"
        self._contents = {name: services.files.read_file(self._path(name)) for name in (_DELAYS, _TIMERS)}
        self._files = {name: self._file(name) for name in self._contents}

    async def copy(self, master: MasterBroker) -> LogBounds:
        """Copies all tables once; returns where the master's log begins and ends.

        A table that cannot be copied is logged, and the others follow.

        Raises:
            RemotingError, BrokerError, FormatError: the master does not tell where its log ends.
        """
        for code, body in (await self._ask(master, _CONFIGURATION)).items():
            await self._took(code, body)
        is_known = RequestCode.GET_ALL_TOPIC_CONFIG not in self._failed
        gone = {name: end for name, end in self._gone.items() if is_known and name not in self._services.topics.table}
        pages = await self._ask_lite(master)
        found = await self._ask(master, _PROGRESS)
        bounds = await master.log_bounds()
        if (found or gone or pages) and await self._synced(bounds.max_offset):
            await self._take_lite(pages)
            for code, body in found.items():
                await self._took(code, body)
            for name, end in gone.items():
                self._remove(name, end)
                await asyncio.sleep(0)  # a removal syncs directories
                await in_turns(self._remove_lite(name))
            gone = {}
        if is_known:
            self._gone = gone | dict.fromkeys(self._vanished, bounds.max_offset)
            self._vanished.clear()
        return bounds

    def _remove(self, topic: str, end: int) -> None:
        """Removes the queues of a deleted topic, unless they have records of a new one.

        Args:
            end: physical offset up to which its records belong to the deleted topic.
        """
        store, name = self._services.store, topic.encode("utf-8", "surrogateescape")
        lasts = [(queue_id, store.max_queue_offset(name, queue_id) - 1) for queue_id in store.queue_ids(name)]
        if lasts and all(last < 0 or store.queue_unit(name, queue_id, last)[0] < end for queue_id, last in lasts):
            event(logger, logging.INFO, "topic deleted, as on the master", topic=topic, end_offset=end)
            store.delete_topic(name, end)
            self._services.offsets.remove_topic(topic)

    def _remove_lite(self, parent: str) -> Steps[None]:
        """Removes the lite topics of a deleted parent. A master of RocketMQ does not tell which are gone."""
        store, name = self._services.store, parent.encode("utf-8", "surrogateescape")
        first: int | None = 0
        while store.lite is not None and first is not None and store.deleted_to(name):
            found = store.lite.names_of(name, first, slave_rows.PAGE_ROWS)
            store.delete_lite_of(name, found.names)
            first = found.following
            yield

    async def _ask_lite(self, master: MasterBroker) -> list[bytes]:
        """Returns the next pages of the master's lite topics."""
        pages: list[bytes] = []
        while self._services.lite_offsets is not None and self._has_pages and len(pages) < slave_rows.PAGES_A_COPY:
            try:
                body, following = await master.lite_rows(self._lite_row)
            except RucolaError as error:
                self._note(RequestCode.GET_ALL_CONSUMER_OFFSET, error)
                break
            if following is None:
                self._has_pages = False
                break
            pages.append(body)
            self._lite_row = max(following, 0)
            if following < 0:
                break
        return pages

    async def _take_lite(self, pages: list[bytes]) -> None:
        offsets = self._services.lite_offsets
        for body in pages if offsets is not None else ():
            assert offsets is not None
            try:
                await in_turns(slave_rows.take(self._services.store, offsets, body))
            except RucolaError as error:
                self._note(RequestCode.GET_ALL_CONSUMER_OFFSET, error)
        if pages and offsets is not None:
            offsets.persist()

    async def _ask(self, master: MasterBroker, codes: tuple[RequestCode, ...]) -> dict[RequestCode, bytes]:
        """Returns the tables that have changed."""
        found: dict[RequestCode, bytes] = {}
        for code in codes:
            try:
                body = await master.table(code)
            except RucolaError as error:
                if not isinstance(error, BrokerError) or error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    self._note(code, error)
                continue  # a master of RocketMQ 4 has neither timers nor POP
            if body != self._bodies.get(code):
                found[code] = body
            else:
                self._failed.discard(code)
        return found

    async def _took(self, code: RequestCode, body: bytes) -> None:
        try:
            await self._take[code](body)
        except RucolaError as error:
            self._note(code, error)
            return
        self._bodies[code] = body
        self._failed.discard(code)

    def _note(self, code: RequestCode, error: RucolaError) -> None:
        """Logs the first failure of a table."""
        if code not in self._failed:
            self._failed.add(code)
            event(logger, logging.WARNING, "table of the master not copied", table=code.name, error=error)

    # -- configuration -------------------------------------------------------------------------------------------------

    async def _take_topics(self, body: bytes) -> None:
        topics = self._services.topics

        def changed() -> tuple[TopicConfigSerializeWrapper, set[str]] | None:
            table = TopicConfigSerializeWrapper.decode(body)
            if topics.is_same(table.data_version, table.topic_config_table):
                return None
            return table, topics.table.keys() - table.topic_config_table.keys()

        if (found := await asyncio.to_thread(changed)) is None:
            return
        table, vanished = found
        if RequestCode.GET_ALL_TOPIC_CONFIG in self._bodies:
            self._vanished |= vanished
        topics.follow(table.data_version, table.topic_config_table)

    async def _take_groups(self, body: bytes) -> None:
        groups = self._services.groups

        def changed() -> SubscriptionGroupWrapper | None:
            table = SubscriptionGroupWrapper.decode(body)
            values = table.data_version, table.subscription_group_table, table.forbidden_table
            return None if groups.is_same(*values) else table

        table = await asyncio.to_thread(changed)
        if table is not None:
            groups.follow(table.data_version, table.subscription_group_table, table.forbidden_table)

    async def _take_modes(self, body: bytes) -> None:
        if self._services.pops.started is None and not self._services.tables.exist(MODES) and body == _EMPTY_MODES:
            return  # without it, nobody needs the POP services
        self._services.pops.get().follow_modes(body)

    # -- progress ------------------------------------------------------------------------------------------------------

    async def _take_offsets(self, body: bytes) -> None:
        version, table = await asyncio.to_thread(decode_consumer_offsets, body)
        if self._services.lite_offsets is not None and self._has_pages:
            self._services.lite_offsets.leave_out(table)
        elif self._services.lite_offsets is not None:
            await in_turns(self._services.lite_offsets.follow(table))
        await in_turns(self._services.offsets.follow(version, table))

    async def _take_delays(self, body: bytes) -> None:
        version, offsets = decode_delay_offsets(body)
        self._services.schedule.follow(version, offsets)
        self._write(_DELAYS, encode_delay_offsets(version, offsets))

    async def _take_timers(self, body: bytes) -> None:
        if len(body) < TIMER_CHECKPOINT.size:
            raise FormatError("timer checkpoint", 0, f"{TIMER_CHECKPOINT.size} bytes", str(len(body)))
        checkpoint = TimerCheckpoint.decode(body)
        if checkpoint == TimerCheckpoint(data_version=DataVersion()):
            return  # the master has had no timed message
        self._services.timers.follow(checkpoint)
        self._write(_TIMERS, checkpoint.encode())

    def _write(self, name: str, content: bytes) -> None:
        if content != self._contents[name]:
            self._contents[name] = content
            self._files[name].changed()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _file(self, name: str) -> KeptTable:
        """A file whose content is the master's; the services that own it do not write on a slave."""
        files = self._services.files

        def snapshot() -> Pieces:
            return iter((self._contents[name] or b"",))

        def replace(content: Pieces) -> None:
            files.make_directory(self._directory)
            files.replace_file(self._path(name), content)

        return self._services.writer.table(name, replace, snapshot, lambda _error: None)
