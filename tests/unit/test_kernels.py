"""The kernels agree with each other, with the build, and with the constants that they repeat."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from enum import IntEnum
from inspect import isfunction
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels import COMPILED, FORMS, KERNELS, kernel

from rucola.broker.property_gate import KEYS_MAX
from rucola.common import columns, kernel_bytes, kernel_columns, kernel_records, kernel_text
from rucola.common.columns import FrameColumn, FrameKind, RecordColumn, SendTrait, WalkStop
from rucola.common.lite_topics import LITE_TOPIC_CHARACTERS_MAX
from rucola.common.message_const import PROPERTY_SEPARATOR
from rucola.common.numbers import INT64_MAX
from rucola.common.sysflag import TRANSACTION_MASK, MessageSysFlag
from rucola.formats import column_plan, consume_queue, index_file, kernel_plan, lite, message, properties, timer
from rucola.http2 import columns as http2_columns
from rucola.protocol.batch_members import ID_BYTES, PACKED_PROPERTIES_BYTES_MAX

ROOT = Path(__file__).parents[2]
SHARED = (kernel_bytes, kernel_columns, kernel_records, kernel_text, kernel_plan, http2_columns)
PREFIXES: dict[str, type[IntEnum]] = {
    "FRAME_": FrameColumn,
    "RECORD_": RecordColumn,
    "KIND_": FrameKind,
    "TRAIT_": SendTrait,
    "STOP_": WalkStop,
    "PLAN_": column_plan.PlanField,
    "COLUMN_": column_plan.PlanKind,
    "PLACE_": column_plan.MessagePlace,
}
OTHERS = {
    "ROW_WIDTH": columns.ROW_WIDTH,
    "PLAN_WIDTH": column_plan.PLAN_WIDTH,
    "PLACES": len(column_plan.MessagePlace),
    "ALIGNMENT": column_plan.ALIGNMENT,
    "TIME_MIN_MS": column_plan.TIMES_MS[0],
    "TIME_MAX_MS": column_plan.TIMES_MS[1],
    "MAGIC_V1": message.MAGIC_V1,
    "MAGIC_V2": message.MAGIC_V2,
    "MAGIC_BLANK": message.MAGIC_BLANK,
    "BLANK_BYTES": message.BLANK.size,
    # plus 8 bytes for the store time, and 2 for the length of the properties
    "RECORD_FIXED_BYTES": message.RECORD_HEAD.size + message.RECORD_MIDDLE.size + 8 + 2,
    "BATCH_MEMBER_FIXED_BYTES": message.BATCH_MEMBER_HEAD.size + 2,
    "ID_BYTES": ID_BYTES,
    "ID_PROPERTY_BYTES": len("UNIQ_KEY\x01") + ID_BYTES + len("\x02"),
    "PROPERTIES_BYTES_MAX": properties.PROPERTIES_BYTES_MAX,
    "CRC_PROPERTY_BYTES": len("__CRC32#\x01" + 10 * "0" + "\x02"),
    "CHECK_BODY_CRC": message.CHECK_BODY_CRC,
    "CHECK_RECORD_CRC": message.CHECK_RECORD_CRC,
    "CHECK_PHYSICAL_OFFSET": message.CHECK_PHYSICAL_OFFSET,
    "TRANSACTION_MASK": TRANSACTION_MASK,
    "TRANSACTION_PREPARED": MessageSysFlag.TRANSACTION_PREPARED,
    "TRANSACTION_ROLLBACK": MessageSysFlag.TRANSACTION_ROLLBACK,
    "BORN_HOST_V6": MessageSysFlag.BORN_HOST_V6,
    "STORE_HOST_V6": MessageSysFlag.STORE_HOST_V6,
    "UNIT_BYTES": consume_queue.UNIT.size,
    "PRE_FILL_SIZE": consume_queue.UNIT.unpack(consume_queue.PRE_FILL_UNIT)[1],
    "QUEUE_WIDTH": len(consume_queue.QueueColumn),
    "COLLECTED_WIDTH": len(consume_queue.CollectedColumn),
    "FNV_START": 2166136261,
    "FNV_PRIME": 16777619,
    "HEADER_BYTES": index_file.INDEX_HEADER.size,
    "SLOT_BYTES": index_file.INDEX_SLOT.size,
    "ENTRY_BYTES": index_file.INDEX_ENTRY.size,
    "BEGIN_TIMESTAMP": index_file.INDEX_HEADER.position("begin_timestamp_ms"),
    "END_TIMESTAMP": index_file.INDEX_HEADER.position("end_timestamp_ms"),
    "BEGIN_PHYSICAL_OFFSET": index_file.INDEX_HEADER.position("begin_physical_offset"),
    "END_PHYSICAL_OFFSET": index_file.INDEX_HEADER.position("end_physical_offset"),
    "HASH_SLOT_COUNT": index_file.INDEX_HEADER.position("hash_slot_count"),
    "INDEX_COUNT": index_file.INDEX_HEADER.position("index_count"),
    "INT32_MAX": 2**31 - 1,
    "MARKS": 64,
    "PROPERTY_END": ord(PROPERTY_SEPARATOR),
    "TOPIC_BYTES_V1_MAX": 127,
    "SUFFIX_BYTES_MAX": 1000,
    "CHECK_CRC_NAME": message.CHECK_CRC_NAME,
    "CRC_NAME_ALIKE": 6,
    "CHECK_TORN_END": message.CHECK_TORN_END,
    "LOOK_AHEAD_BYTES": 6144,
    "CACHE_LINE_BYTES": 64,
    "WORDS_ARE_LITTLE": sys.byteorder == "little",
    "EACH_LOW": int.from_bytes(b"\x01" * 8, "big"),
    "EACH_HIGH": int.from_bytes(b"\x80" * 8, "big"),
    "FORMS": 8,
    "BROKERS_FLAGS": int(TRANSACTION_MASK | MessageSysFlag.INNER_BATCH),
    "CRC_NAME": int.from_bytes(b"__CRC32#", "big"),
    "SHAPE_START": 0,
    "SHAPE_LEN": 1,
    "SHAPE_ENDS": 2,
    "SHAPE_PAIRS": 32,
    "SHAPE_WIDTH": 2 + 32,
    "PAIR_BYTES": 16,
    "GROUP_ROWS": 256,
    "ROOM_OF_WORDS": 4096,
    "FORM_WIDTH": 5,
    "FORM_BYTES_MAX": 1024,
    "FORM_START": 0,
    "FORM_LEN": 1,
    "FORM_OUT": 2,
    "FORM_OUT_LEN": 3,
    "FORM_BALANCE": 4,
    "FORM_COST": 4,
    "FORM_BALANCE_MAX": 64,
    "TIMER_UNIT_BYTES": timer.TIMER_UNIT.size,
    "TIMER_SLOT_BYTES": timer.TIMER_SLOT.size,
    "TIMER_BLANK_MAGIC": timer.TIMER_BLANK_MAGIC,
    "MAGIC_DELETE": timer.MAGIC_DELETE,
    "MAGIC_MAX": timer.MAGIC_MAX,
    "STOP_AT_LIMIT": timer.STOP_AT_LIMIT,
    "STOP_AT_BLANK": timer.STOP_AT_BLANK,
    "STOP_AT_NO_UNIT": timer.STOP_AT_NO_UNIT,
    "NAME_HEAD_BYTES": len(lite.encode_name(0, b"a")) - 1 - 4,
    "NAME_CRC_BYTES": 4,
    "LITE_UNIT_BYTES": lite.LITE_UNIT.size,
    "LITE_CRC_AT": lite.LITE_UNIT.position("crc"),
    "REMOVED": 2**32 - 1,
    "BEGINS": 2**32 - 1,
    "DOLLAR": ord("$"),
    "DISPATCH_NAME_BYTES": len("INNER_MULTI_DISPATCH"),
    "OFFSETS_NAME_BYTES": len("INNER_MULTI_QUEUE_OFFSET"),
    "LITE_HEAD_BYTES": len("%LMQ%$"),
    "LIGHT_NAME_BYTES_MAX": 255,
    "OFFSET_DIGITS_MAX": len(str(lite.QUEUE_OFFSET_MAX)),
    "LITE_NAME_BYTES_MAX": LITE_TOPIC_CHARACTERS_MAX,
    "OFFSET_BYTES_MAX": len(str(INT64_MAX)),
    "ENDS_BYTES": 2,
    "KEYS_PLAIN_BYTES": 2 * KEYS_MAX - 1,
}


def test_build_list_type_checker_list_and_files_agree() -> None:
    (build_list,) = [
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNELS"
    ]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    checked = [entry["module"] for entry in settings["tool"]["mypy"]["overrides"] if "disable_error_code" in entry]
    assert build_list == list(KERNELS)
    assert checked == [list(KERNELS)]


def test_compiled_are_all_or_none() -> None:
    assert COMPILED in ((), KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_each_form_is_what_it_says(name: str) -> None:
    for form in FORMS:
        assert kernel(name.removeprefix("rucola."), form)._is_compiled() == (form == "compiled")


COLUMNS = "rucola.protocol._batch_members_cy"
"""Name of a protocol kernel that has no tables."""


@pytest.mark.parametrize("name", [name for name in KERNELS if ".formats." in name or name == COLUMNS])
def test_constants_of_the_format_kernels(name: str) -> None:
    constants = restated(name)
    assert constants
    for constant, value in constants.items():
        assert value == meaning(constant), constant


def meaning(constant: str) -> int:
    """Returns the value that a kernel's constant must have; a Python module defines this value."""
    if constant in OTHERS:
        return OTHERS[constant]
    prefix, _, rest = constant.partition("_")
    if constant in ("RECORD_POS", "RECORD_SIZE"):
        return RecordColumn[constant]
    if constant == "FRAME_RECORD_SIZE":
        return FrameColumn.RECORD_SIZE
    return PREFIXES[prefix + "_"][rest]


def test_the_packed_properties_leave_room_for_the_id() -> None:
    assert properties.PROPERTIES_BYTES_MAX - OTHERS["ID_PROPERTY_BYTES"] == PACKED_PROPERTIES_BYTES_MAX


@pytest.mark.parametrize("shared", SHARED, ids=lambda module: module.__name__)
def test_both_forms_of_what_the_kernels_share_have_the_same_names_and_numbers(shared: ModuleType) -> None:
    assert shared.__file__ is not None
    compiled = Path(shared.__file__).with_suffix(".pxd").read_text()
    numbers = {name: int(value, 0) for name, value in re.findall(r"^    ([A-Z_0-9]+) = (\w+)$", compiled, re.MULTILINE)}
    numbers |= {name: int(value) for name, value in re.findall(r"#define RUCOLA_(\w+) \((-?\d+)LL\)", compiled)}
    functions = re.findall(r"^cdef inline .*?(\w+)\(", compiled, re.MULTILINE)
    own = {name: value for name, value in vars(shared).items() if not name.startswith("_")}
    assert numbers == {name: value for name, value in own.items() if isinstance(value, int)}
    assert sorted(functions) == sorted(
        name for name, value in own.items() if isfunction(value) and value.__module__ == shared.__name__
    )


def restated(name: str) -> dict[str, int]:
    """Returns the integers that a kernel declares; they are visible only in its interpreted form."""
    module = kernel(name.removeprefix("rucola."), "interpreted")
    return {
        constant: int(value)
        for constant, value in vars(module).items()
        if constant.strip("_").isupper() and isinstance(value, int)
    }
