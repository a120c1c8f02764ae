"""Commands that write a cluster's configuration to a file: ``exportMetadata``, ``exportConfigs``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.target import Target, command
from rucola.client.admin import AdminClient
from rucola.common.key_builder import SYSTEM_GROUP_PREFIX, is_dlq_topic, is_retry_topic, is_system_topic
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.config_json import dumps_pretty
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files

Folder = Annotated[str, typer.Option("-f", "--filePath", help="Directory of the file; created if it does not exist.")]
_OWN_GROUPS = frozenset(
    {
        *("DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER"),
        *("__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP"),
        *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL"),
    }
)
"""System groups (RocketMQ 5.3.3, ``MixAll#PREDEFINE_GROUP_SET``); so are those with ``SYSTEM_GROUP_PREFIX``."""
_CONFIG_KEYS = """
    brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums flushDiskType maxMessageSize
    messageDelayLevel msgTraceTopicName slaveReadEnable traceOn traceTopicEnable useTLS autoCreateTopicEnable
    autoCreateSubscriptionGroup
"""


@command("exportMetadata")
async def export_metadata(
    target: Target,
    folder: Folder = ".",
    topics_only: Annotated[bool, typer.Option("-t", "--topic", help="Topics only.")] = False,
    groups_only: Annotated[bool, typer.Option("-g", "--subscriptionGroup", help="Only consumer groups.")] = False,
    special: Annotated[
        bool, typer.Option("-s", "--specialTopic", help="Include retry and dead-letter topics.")
    ] = False,
) -> None:
    """Write topics and consumer groups to a file; queue counts of several brokers are added up."""
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for address in await target.masters():
        own = frozenset(await target.admin.api.system_topics(address))
        for name, topic in (await target.admin.api.all_topic_configs(address)).items():
            if name not in own and not is_system_topic(name) and (special or not _is_special(name)):
                topics[name] = _with_queues_of(topic, topics.get(name))
        for name, group in (await target.admin.api.all_groups(address)).items():
            if name not in _OWN_GROUPS and not name.startswith(SYSTEM_GROUP_PREFIX):
                known = groups.get(name)
                more = known.retry_queue_nums if known is not None else 0
                groups[name] = replace(group, retry_queue_nums=group.retry_queue_nums + more)
    content: dict[str, Any] = {}
    if not groups_only:
        content["topicConfigTable"] = {name: topics[name].to_dict() for name in sorted(topics)}
    if not topics_only:
        content["subscriptionGroupTable"] = {name: groups[name].to_dict() for name in sorted(groups)}
    content["exportTime"] = SystemClock().wall_ms()
    name = "topic.json" if topics_only else "subscriptionGroup.json" if groups_only else "metadata.json"
    _write(folder, name, content)


@command("exportConfigs")
async def export_configs(
    admin: AdminClient,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="Cluster.", show_default=False)],
    folder: Folder = ".",
) -> None:
    """Write to a file how many brokers and name servers a cluster has, and the main options of its masters."""
    configs: dict[str, dict[str, str]] = {}
    masters = await admin.masters(None, cluster)
    members = await admin.members(None, cluster)
    for address in masters:
        config = await admin.api.broker_config(address)
        configs[config.get("brokerName", address)] = {
            key: config[key] for key in sorted(_CONFIG_KEYS.split()) if key in config
        }
    scale = {
        "masterBrokerSize": len(masters),
        "namesrvSize": len(admin.namesrv_addresses),
        "slaveBrokerSize": len(members) - len(masters),
    }
    _write(folder, "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


def _is_special(topic: str) -> bool:
    return is_retry_topic(topic) or is_dlq_topic(topic)


def _with_queues_of(topic: TopicConfig, known: TopicConfig | None) -> TopicConfig:
    if known is None:
        return topic
    return replace(
        topic,
        read_queue_nums=topic.read_queue_nums + known.read_queue_nums,
        write_queue_nums=topic.write_queue_nums + known.write_queue_nums,
    )


def _write(folder: str, name: str, content: dict[str, Any]) -> None:
    files = Files()
    path = f"{folder.rstrip('/')}/{name}"
    files.make_directory(folder)
    files.replace_file(path, dumps_pretty(content))
    output.say(f"export {path} success", path=path)
