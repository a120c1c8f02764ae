"""The tables of request and response codes."""

from __future__ import annotations

from tests.unit.protocol.golden import all_frames

from rucola import protocol
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode


def test_recorded_codes_are_known() -> None:
    no_such_code = {-1, 12345, 13, 22, 27, 47}  # the recording requests these codes to see the refusal
    for recorded in all_frames():
        code = recorded.record["code"]
        assert code in ({*ResponseCode} if recorded.is_response else {*RequestCode, *no_such_code}), recorded.record
        assert recorded.header["language"] in LanguageCode.__members__


def test_names_are_unique() -> None:
    assert len(RequestCode.__members__) == len(RequestCode)
    assert len(ResponseCode.__members__) == len(ResponseCode)
    assert list(LanguageCode) == list(range(14))


def test_exports() -> None:
    assert all(hasattr(protocol, name) for name in protocol.__all__)
    assert sorted(protocol.__all__) == [
        "BINARY", "FrameBatch", "FrameReader", "JSON", "LanguageCode", "PROTOCOL_VERSION", "RemotingCommand",
        "RequestCode", "ResponseCode", "SendAnswers", "encode_pull_header",
    ]  # fmt: skip
