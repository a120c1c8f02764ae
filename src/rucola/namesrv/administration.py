"""The table of administrative requests. Many name servers never receive such a request, so a thread imports the
processor only when the first one arrives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from rucola.namesrv.kv_config import KVConfigManager
from rucola.namesrv.route_info import RouteInfoManager, RouteLimits
from rucola.protocol.codes import RequestCode
from rucola.remoting.processors import Processor, ProcessorTable
from rucola.runtime.background_imports import BackgroundImports, is_imported

if TYPE_CHECKING:
    from rucola.namesrv.admin_processor import NamesrvAdminProcessor

_MODULE = "rucola.namesrv.admin_processor"
REQUESTS: Mapping[int, Callable[[NamesrvAdminProcessor], Processor]] = {
    RequestCode.PUT_KV_CONFIG: lambda it: it.put_kv_config,
    RequestCode.GET_KV_CONFIG: lambda it: it.get_kv_config,
    RequestCode.DELETE_KV_CONFIG: lambda it: it.delete_kv_config,
    RequestCode.GET_KVLIST_BY_NAMESPACE: lambda it: it.get_kv_list,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: lambda it: it.wipe_write_perm,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: lambda it: it.add_write_perm,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda it: it.all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: lambda it: it.topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda it: it.system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: lambda it: it.unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda it: it.unit_sub_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda it: it.unit_sub_not_unit_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda it: it.delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: lambda it: it.register_topic,
}


def register_administration(
    table: ProcessorTable,
    routes: RouteInfoManager,
    kv_config: KVConfigManager,
    persist: Callable[[], Awaitable[None]],
    limits: RouteLimits,
) -> None:
    """Registers the administrative requests in ``table``.

    Args:
        persist: called after each change of ``kv_config``; the returned awaitable completes when the change is synced.
        limits: how many topics may be registered.
    """

    imports = BackgroundImports()

    @cache
    def made() -> NamesrvAdminProcessor:
        from rucola.namesrv.admin_processor import NamesrvAdminProcessor

        return NamesrvAdminProcessor(routes, kv_config, persist, limits)

    def processor(method: Callable[[NamesrvAdminProcessor], Processor]) -> Processor | Awaitable[Processor]:
        return method(made()) if is_imported(_MODULE) else imported(method)

    async def imported(method: Callable[[NamesrvAdminProcessor], Processor]) -> Processor:
        await imports.get(_MODULE)
        return method(made())

    for code, method in REQUESTS.items():
        table.register_later(code, partial(processor, method))
