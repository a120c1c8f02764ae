"""A few flights with every special case: cancelled, diverted, without a known plane, with an unlisted airline."""

from __future__ import annotations

import zipfile
from pathlib import Path

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
FLIGHTS = (
    "2013,1,1,517,515,2,830,833,-3,AA,1,N1,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",  # plane of 150 seats
    "2013,1,1,NA,600,NA,NA,833,NA,AA,2,NA,JFK,IAH,NA,1400,6,0,2013-01-01T11:00:00Z",  # cancelled
    "2013,1,2,605,600,5,NA,833,NA,AA,2,N9,JFK,IAH,NA,1400,6,0,2013-01-02T11:00:00Z",  # diverted, plane not listed
    "2013,2,1,NA,600,NA,NA,833,NA,AA,2,N9,JFK,IAH,NA,1400,6,0,2013-02-01T11:00:00Z",  # a month without a departure
    "2013,1,1,601,600,1,835,833,2,XX,7,N1,LGA,IAH,227,1400,6,0,2013-01-01T11:00:00Z",  # airline not listed
)
AIRLINES = "carrier,name\nAA,American Airlines Inc.\n"
PLANES = (
    "tailnum,year,type,manufacturer,model,engines,seats,speed,engine\n"
    "N1,1999,Fixed wing multi engine,BOEING,737-800,2,150,NA,Turbo-fan\n"
)


def write_sample_csv(directory: Path) -> None:
    """Writes the files as the package lays them out."""
    with zipfile.ZipFile(directory / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join((HEADER, *FLIGHTS, "")))
    (directory / "airlines.csv").write_text(AIRLINES)
    (directory / "planes.csv").write_text(PLANES)


def sample_rows() -> list[dict[str, str]]:
    """Returns the flights as `demo.flights.data.flight_rows` yields them."""
    return [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in FLIGHTS]
