"""Sends messages for changes, each once: a message without an answer may have been stored."""

from __future__ import annotations

from typing import Final

from rucola.client.config import ProducerConfig
from rucola.client.producer import Producer
from rucola.client.send_result import SendResult, SendStatus
from rucola.common.message import Message
from rucola.console.visit import Visit

PRODUCER_GROUP: Final = "RUCOLA_CONSOLE"
_TIMEOUT_MS: Final = 3_000


class MessageSender:
    """A producer with the visitor's account, which begins with the first message."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._producer: Producer | None = None

    async def send(self, message: Message) -> SendResult:
        """Sends a message.

        Raises:
            RucolaError: it was not stored, or nobody knows.
        """
        if self._producer is None:
            config, account = self._visit.config, self._visit.account
            producer = Producer(
                PRODUCER_GROUP,
                self._visit.watch.at.namesrv,
                ProducerConfig(
                    access_key=account.name,
                    secret_key=account.secret,
                    signature_version=config.signature_version,
                    use_tls=config.use_tls,
                    tls_trust_cert_path=config.tls_trust_cert_path,
                    retry_times_when_send_failed=0,
                    send_msg_timeout_ms=_TIMEOUT_MS,
                ),
            )
            await producer.start()
            self._producer = producer
        return await self._producer.send(message)

    async def close(self) -> None:
        """Closes the producer, if there is one."""
        if self._producer is not None:
            await self._producer.shutdown()


def doubt_of(result: SendResult) -> str:
    """What is doubtful about a message although it is stored; empty if nothing is."""
    return "" if result.status is SendStatus.SEND_OK else f"stored, but {result.status.value}"
