"""Tests the shop in examples/ as its authors would, with one test of each kind; the campaign ``sample`` runs all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOP = Path(__file__).resolve().parents[2] / "examples" / "shop"
ONE_OF_EACH = (
    "an_order_is_published_and_charged[Ada-espresso]",
    "a_refused_card_is_tried_again_after_longer_and_longer_pauses[Ada-1]",
    "an_order_that_is_never_charged_is_a_dead_letter[Ada]",
    "a_reminder_comes_after_its_time_and_no_earlier[early0]",
    "a_busy_broker_costs_no_order[espresso-1]",
    "orders_of_a_customer_stay_in_order_over_a_killed_broker[3]",
    "a_till_that_comes_later_charges_what_was_ordered_before[Ada-espresso]",
)


def test_one_of_each_of_the_shops_tests() -> None:
    tests = [f"test_shop.py::test_{name}" for name in ONE_OF_EACH]
    plugin = () if _is_installed() else ("-p", "rucola.testing.plugin")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *plugin, *tests],
        cwd=SHOP,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert f"{len(ONE_OF_EACH)} passed" in ran.stdout, ran.stdout + ran.stderr


def _is_installed() -> bool:
    """Whether the package's entry points are installed; they are missing if the checkout is only on the path."""
    from importlib.metadata import entry_points

    return any(point.value == "rucola.testing.plugin" for point in entry_points(group="pytest11"))
