"""Describes the types of values in a JSON body, to compare bodies whose times, addresses and numbers differ."""

from __future__ import annotations

from typing import Any

TABLES = {
    "addresses", "attributes", "brokerAddrTable", "brokerAddrs", "clusterAddrTable", "correctionOffsets", "data",
    "forbiddenTable", "groupTopicMap", "mqPopTable", "mqTable", "offsetTable", "subscriptionGroupTable",
    "subscriptionTable", "topicConfigTable", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap",
}  # fmt: skip
"""Names of members that are tables: their keys are data, such as topic names."""


def shape(value: Any, name: str = "") -> Any:
    """Returns the type of a JSON value: of an object, the types of all members; of a table or list, that of its first
    value.
    """
    if isinstance(value, dict) and (name in TABLES or any(isinstance(key, tuple) for key in value)):
        return {"*": next((shape(member) for member in value.values()), None)}
    if isinstance(value, dict):
        return {key: shape(member, key) for key, member in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value and not isinstance(value[0], dict) else [None]
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "text"


def assert_same_shape(ours: Any, theirs: Any, path: str = "") -> None:
    """Checks that two bodies have the same shape; a table may be empty in one of them, all other values must exist."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if ours.keys() == theirs.keys() == {"*"} and None in (ours["*"], theirs["*"]):
            return
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            assert_same_shape(ours[key], theirs[key], f"{path}.{key}")
    elif not (isinstance(theirs, list) and isinstance(ours, list)):
        assert ours == theirs, path
