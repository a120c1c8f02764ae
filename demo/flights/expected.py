"""Computes the figures of gold with pandas, directly from the CSV files.

It uses no broker, no message and no Spark, and shares no code with `data`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .figures import CarrierMonth, mean

if TYPE_CHECKING:
    import pandas as pd


def expected_figures(directory: Path, rows_max: int) -> list[CarrierMonth]:
    """All rows that gold must contain, in order of carrier and month.

    Args:
        directory: directory with ``flights.csv.zip``, ``airlines.csv`` and ``planes.csv``.
        rows_max: only this many flights from the start of the file.
    """
    import pandas as pd

    columns = ["month", "carrier", "tailnum", "dep_time", "dep_delay", "arr_delay"]
    flights = pd.read_csv(directory / "flights.csv.zip", usecols=columns, nrows=rows_max)
    airlines = pd.read_csv(directory / "airlines.csv").set_index("carrier")["name"].to_dict()
    seats = pd.read_csv(directory / "planes.csv").set_index("tailnum")["seats"]
    flights["seats"] = flights["tailnum"].map(seats)
    return [
        _figures(str(carrier), int(month), airlines.get(carrier), group)
        for (carrier, month), group in flights.groupby(["carrier", "month"], sort=True)
    ]


def _figures(carrier: str, month: int, airline: str | None, flights: pd.DataFrame) -> CarrierMonth:
    departed, arrived = int(flights["dep_delay"].count()), int(flights["arr_delay"].count())
    # pandas holds a column with missing values as floats; sums of whole minutes stay far below 2**53 and are exact.
    departure_delay, arrival_delay = int(flights["dep_delay"].sum()), int(flights["arr_delay"].sum())
    return CarrierMonth(
        carrier=carrier,
        month=month,
        airline=airline,
        flights=len(flights),
        cancelled=int(flights["dep_time"].isna().sum()),
        departed=departed,
        departure_delay_sum_min=departure_delay,
        departure_delay_mean_min=mean(departure_delay, departed),
        arrived=arrived,
        arrival_delay_sum_min=arrival_delay,
        arrival_delay_mean_min=mean(arrival_delay, arrived),
        seats=int(flights["seats"].sum()),
    )
