"""The columns of the row tables as plain integers, for interpreted kernels; for example ``FRAME_BODY_POS``.

``kernel_columns.pxd`` states the same numbers for compiled kernels, where they are constants of C. An ``IntEnum`` would
cost an interpreted kernel a search by name for each column of each row.
"""

from __future__ import annotations

from rucola.common import columns

ROW_WIDTH = columns.ROW_WIDTH

_PREFIXES = {
    "FRAME_": columns.FrameColumn,
    "RECORD_": columns.RecordColumn,
    "KIND_": columns.FrameKind,
    "TRAIT_": columns.SendTrait,
    "STOP_": columns.WalkStop,
}
for _prefix, _enum in _PREFIXES.items():
    for _name, _member in _enum.__members__.items():
        # RecordColumn.RECORD_POS and RECORD_SIZE have the prefix already.
        globals()[_name if _enum is columns.RecordColumn and _name.startswith(_prefix) else _prefix + _name] = int(
            _member
        )
