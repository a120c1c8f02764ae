"""Every outcome of the broker has its code of the protocol."""

from __future__ import annotations

import pickle

import pytest

from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.proxy import messages
from rucola.proxy.refusal import RefusedError, code_of_response, common_code

OWN_CODES = {
    ResponseCode.SUCCESS: 20000,
    ResponseCode.SYSTEM_BUSY: 42900,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: 50100,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 40403,
    ResponseCode.TOPIC_NOT_EXIST: 40402,
    ResponseCode.RPC_TIME_OUT: 50400,
    ResponseCode.NO_PERMISSION: 40300,
    ResponseCode.FLUSH_DISK_TIMEOUT: 50401,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: 50402,
    ResponseCode.SLAVE_NOT_AVAILABLE: 50002,
    ResponseCode.LMQ_QUOTA_EXCEEDED: 42901,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: 42902,
}


@pytest.mark.parametrize("code", ResponseCode)
def test_response_codes(code):
    assert code_of_response(code) == OWN_CODES.get(code, messages.INTERNAL_SERVER_ERROR)


def test_a_response_code_that_nobody_knows():
    assert code_of_response(987654) == messages.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("codes", "common"),
    [((), 50001), ((20000,), 20000), ((42900, 42900), 42900), ((20000, 42900), 30000), (iter((20000, 20000)), 20000)],
)
def test_the_code_of_a_whole_answer(codes, common):
    assert common_code(codes) == common


def test_a_refusal_is_answered_with_its_text():
    refusal = RefusedError(messages.ILLEGAL_TOPIC, "what is wrong")
    assert refusal.status() == messages.Status(code=40002, message="what is wrong")
    assert str(refusal) == "what is wrong"
    copy = pickle.loads(pickle.dumps(refusal))
    assert (copy.code, copy.text) == (40002, "what is wrong")


@pytest.mark.parametrize(("remark", "text"), [("no such topic", "no such topic"), ("", "17")])
def test_an_answer_of_a_broker_becomes_a_refusal(remark, text):
    refusal = RefusedError.of(BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark))
    assert (refusal.code, refusal.text) == (messages.TOPIC_NOT_FOUND, text)
