"""The model of etcd answers as a real one did (``python -m tests.conformance.ha_etcd --record``)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.controller.etcd_model import EtcdModel
from tests.unit.controller.etcd_script import answers

from rucola.testing.clock import ManualClock

GOLDEN = Path(__file__).parents[2] / "golden" / "etcd" / "calls.json"


def test_the_model_answers_as_etcd_3_4() -> None:
    expected = json.loads(GOLDEN.read_text())
    for number, (found, recorded) in enumerate(
        zip(answers(EtcdModel(ManualClock().monotonic).handle), expected, strict=True)
    ):
        assert found == recorded, number


def test_a_lease_ends_with_its_keys() -> None:
    clock = ManualClock()
    model = EtcdModel(clock.monotonic)
    lease = model.handle("/v3/lease/grant", {"TTL": 5})["ID"]
    put = {"key": "L2E=", "value": "eA==", "lease": lease}
    model.handle("/v3/kv/txn", {"compare": [], "success": [{"request_put": put}], "failure": []})
    clock.advance(4900)
    assert model.handle("/v3/lease/keepalive", {"ID": lease})["result"]["TTL"] == "5"
    clock.advance(4900)
    assert model.value("/a") == b"x"
    clock.advance(200)
    assert model.value("/a") is None
    assert "TTL" not in model.handle("/v3/lease/keepalive", {"ID": lease})["result"]
