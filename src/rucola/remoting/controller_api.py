"""Typed calls to controllers, and to brokers about their epochs; same conventions as in ``api``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rucola.common.java import format_properties, parse_properties
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.bodies.controller import BrokerReplicasInfo, ElectMasterResponseBody, EpochEntryCache
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers import controller as headers
from rucola.remoting.name_server_api import NameServerApi

TIMEOUT_MS = 10_000


class ControllerApi(NameServerApi):
    """The calls; stateless apart from the client. Those that change or read groups need the leader's address."""

    async def metadata(self, address: str) -> headers.GetMetaDataResponseHeader:
        """CONTROLLER_GET_METADATA_INFO (1005): who leads."""
        answer = await self._call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return headers.GetMetaDataResponseHeader.from_ext_fields(answer.ext_fields)

    async def sync_state_data(self, address: str, names: Sequence[str]) -> BrokerReplicasInfo:
        """CONTROLLER_GET_SYNC_STATE_DATA (1006); groups that the controller does not know are missing."""
        answer = await self._call(address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=fastjson.dumps(names))
        return BrokerReplicasInfo.decode(answer.body)

    async def elect_master(
        self, address: str, header: headers.ElectMasterRequestHeader
    ) -> tuple[headers.ElectMasterResponseHeader, ElectMasterResponseBody]:
        """CONTROLLER_ELECT_MASTER (1002); raises ``BrokerError`` 2011 if the master stays."""
        answer = await self._call(address, RequestCode.CONTROLLER_ELECT_MASTER, header, timeout_ms=TIMEOUT_MS)
        body = ElectMasterResponseBody.decode(answer.body) if answer.body else ElectMasterResponseBody()
        return headers.ElectMasterResponseHeader.from_ext_fields(answer.ext_fields), body

    async def clean_broker_data(self, address: str, header: headers.CleanControllerBrokerDataRequestHeader) -> None:
        """CLEAN_BROKER_DATA (1011)."""
        await self._call(address, RequestCode.CLEAN_BROKER_DATA, header, timeout_ms=TIMEOUT_MS)

    async def config(self, address: str) -> dict[str, str]:
        """GET_CONTROLLER_CONFIG (1010)."""
        body = (await self._call(address, RequestCode.GET_CONTROLLER_CONFIG)).body
        try:
            return parse_properties(bytes(body).decode())
        except ValueError as error:
            raise FormatError("configuration", 0, "Java properties in UTF-8", str(error)) from error

    async def change_config(self, address: str, values: Mapping[str, str]) -> None:
        """UPDATE_CONTROLLER_CONFIG (1009)."""
        body = format_properties(values).encode()
        await self._call(address, RequestCode.UPDATE_CONTROLLER_CONFIG, body=body)

    async def epochs(self, address: str) -> EpochEntryCache:
        """GET_BROKER_EPOCH_CACHE (1007), to a broker."""
        return EpochEntryCache.decode((await self._call(address, RequestCode.GET_BROKER_EPOCH_CACHE)).body)
