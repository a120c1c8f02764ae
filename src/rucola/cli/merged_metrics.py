"""Metrics of several processes, brokers and their proxy, at one endpoint. The label ``broker`` tells the brokers apart;
metrics of the proxy have the name of the proxy there.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from rucola.common.hosts import split_address

_TIMEOUT_S = 2.0


class MergedCollector(Collector):
    """Queries the brokers at each collection.

    Args:
        brokers: address of each broker's ``/metrics``, ``host:port`` by broker name; None for a broker that ended.
        proxies: the same of proxies.
    """

    def __init__(self, brokers: Mapping[str, str | None], proxies: Mapping[str, str | None] | None = None) -> None:
        self._brokers, self._proxies = brokers, proxies or {}

    def collect(self) -> Iterator[Metric]:
        """All metrics; for a process that ended or does not respond, only ``rucola_broker_up`` or ``rucola_proxy_up``
        0.
        """
        addresses = {**self._brokers, **self._proxies}
        asked = {name: address for name, address in addresses.items() if address is not None}
        with ThreadPoolExecutor(max(len(asked), 1)) as pool:
            texts = dict(zip(asked, pool.map(_metrics_of, asked.values()), strict=True))
        up = GaugeMetricFamily("rucola_broker_up", "1 while the broker's process responds.", labels=["broker"])
        merged: dict[str, Metric] = {}
        for name in addresses:
            text = texts.get(name)
            if name in self._proxies:
                yield GaugeMetricFamily(
                    "rucola_proxy_up", "1 while the proxy's process responds.", int(text is not None)
                )
            else:
                up.add_metric([name], int(text is not None))
            for family in text_string_to_metric_families(text or ""):
                into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    into.add_sample(sample.name, {**sample.labels, "broker": name}, sample.value)
        yield up
        yield from merged.values()


def _metrics_of(address: str) -> str | None:
    """The text of ``/metrics``; None if there is no valid response."""
    host, port = split_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
