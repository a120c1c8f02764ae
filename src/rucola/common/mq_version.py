"""Version ordinals that peers send (RocketMQ 5.4.0, ``MQVersion.Version``)."""

from __future__ import annotations

from enum import IntEnum


class MQVersion(IntEnum):
    """Releases that differ in behaviour or that peers report."""

    V3_0_11 = 37
    V3_1_8_SNAPSHOT = 62
    V3_4_9 = 121
    V4_0_0 = 213
    V4_1_0 = 233
    V4_2_0 = 253
    V4_3_0 = 273
    V4_4_0 = 293
    V4_5_0 = 313
    V4_5_1 = 315
    V4_5_2 = 317
    V4_6_0 = 333
    V4_6_1 = 335
    V4_7_0 = 353
    V4_7_1 = 355
    V4_8_0 = 373
    V4_9_0 = 393
    V4_9_7 = 407
    V4_9_8 = 409
    V5_0_0 = 413
    V5_1_0 = 433
    V5_2_0 = 453
    V5_3_0 = 473
    V5_3_1 = 475
    V5_3_2 = 477
    V5_3_3 = 479
    V5_4_0 = 493
    HIGHER_VERSION = 612


CURRENT_VERSION = MQVersion.V5_3_3
"""The version that Rucola reports: the RocketMQ release with the same files and responses as Rucola."""


def version_name(ordinal: int) -> str:
    """Returns the name of a version, for example ``V5_3_3``. For an unknown version, returns the name of the newest
    known version before it, followed by ``+``; if there is none, returns the ordinal.
    """
    known = max((version for version in MQVersion if version <= ordinal), default=None)
    if known is None:
        return str(ordinal)
    return known.name if known == ordinal else f"{known.name}+"
