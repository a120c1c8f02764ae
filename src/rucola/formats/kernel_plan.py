"""The numbers of ``column_plan`` and checks of a plan, for interpreted kernels; for example ``PLAN_VALUES``.

``kernel_plan.pxd`` is the compiled form.
"""

from __future__ import annotations

from typing import Any

from rucola.common import kernel_bytes
from rucola.formats import column_plan

PLAN_WIDTH = column_plan.PLAN_WIDTH
ALIGNMENT = column_plan.ALIGNMENT
PLACES = len(column_plan.MessagePlace)

for _prefix, _enum in (
    ("PLAN_", column_plan.PlanField),
    ("COLUMN_", column_plan.PlanKind),
    ("PLACE_", column_plan.MessagePlace),
):
    for _name, _member in _enum.__members__.items():
        globals()[_prefix + _name] = int(_member)


def size_of_values(plan: Any, at: int, rows: int) -> int:
    """Number of bytes of the values of a column with ``rows`` rows; -1 for a repeated text of a wrong length."""
    kind, detail = plan[at + column_plan.PlanField.KIND], plan[at + column_plan.PlanField.DETAIL]
    if kind == column_plan.PlanKind.INT32:
        return 4 * rows
    if kind == column_plan.PlanKind.INT64:
        return 8 * rows
    if kind == column_plan.PlanKind.REPEATED:
        return int(detail) * rows if 0 <= detail <= kernel_bytes.INT32_MAX else -1
    if kind == column_plan.PlanKind.SAME:
        return 0
    return int(plan[at + column_plan.PlanField.DONE])


def check_places(plan: Any, at: int, rows: int, start: int, size: int) -> int:
    """Checks that a column with ``rows`` rows lies between the positions ``start`` and ``size`` of a buffer.

    Raises:
        ValueError: the column does not.
    """
    kind = plan[at + column_plan.PlanField.KIND]
    values = plan[at + column_plan.PlanField.VALUES]
    offsets = plan[at + column_plan.PlanField.OFFSETS]
    room = plan[at + column_plan.PlanField.ROOM]
    fits = 0 <= size_of_values(plan, at, rows) <= room <= kernel_bytes.INT32_MAX
    fits = fits and start <= values <= size - room and values % 8 == 0
    if kind not in (column_plan.PlanKind.INT32, column_plan.PlanKind.INT64, column_plan.PlanKind.SAME):
        fits = fits and start <= offsets <= values - 4 * (rows + 1) and offsets % 4 == 0
    if not fits:
        raise ValueError(
            f"column {at // PLAN_WIDTH} with {rows} rows does not fit into the buffer, which has {size} bytes"
        )
    return 0
