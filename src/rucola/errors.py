"""The exception tree. Every exception holds its details as fields, and ``retriable`` says whether a retry can help.
Spark sends exceptions between processes, so each can be pickled: it keeps its constructor arguments unchanged.
"""

from __future__ import annotations


class RucolaError(Exception):
    """Base class of all errors that this package raises deliberately."""

    retriable = False
    """Whether a retry of the same call may succeed."""


class FormatError(RucolaError):
    """Bytes on disk or on the wire that violate their format.

    Args:
        what: the item that was read, for example ``"commit log record"``.
        position: position of the first invalid byte in ``source``.
        expected: the values that the format allows there.
        got: the value found.
        source: file name or peer; empty if the caller has only bytes.
    """

    def __init__(self, what: str, position: int, expected: str, got: str, source: str = "") -> None:
        super().__init__(what, position, expected, got, source)
        self.what, self.position, self.expected, self.got, self.source = what, position, expected, got, source

    def __str__(self) -> str:
        place = f"{self.source}, " if self.source else ""
        return f"{self.what}: {place}position {self.position}: expected {self.expected}, got {self.got}"


class UnreadableBodyError(FormatError):
    """The body of a received message cannot be decompressed: it is damaged, or the package for it is not installed.

    Args:
        topic: topic of the message.
        queue_id: queue of the message.
        queue_offset: position of the message in its queue.
        reason: what is wrong with the body; names the package that is missing.
    """

    def __init__(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        super().__init__("message body", 0, "a body that can be decompressed", reason)
        self.args = topic, queue_id, queue_offset, reason
        self.topic, self.queue_id, self.queue_offset, self.reason = topic, queue_id, queue_offset, reason

    def __str__(self) -> str:
        return f"body of message {self.queue_offset} of {self.topic}, queue {self.queue_id}: {self.reason}"


class WorkerKilledError(RucolaError):
    """Somebody, or the system for lack of memory, killed a worker process of a command."""

    retriable = True

    def __str__(self) -> str:
        return "a worker process was killed, perhaps for lack of memory; run the command again, with fewer --jobs"


class StoreError(RucolaError):
    """The store cannot carry out a request."""


class StoreLockedError(StoreError):
    """Another process has locked the store directory."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"store directory {self.path} is in use by another process (its file 'lock' is locked)"


class StoreDamagedError(StoreError):
    """A file of the store is damaged."""

    def __init__(self, path: str, position: int, problem: str, advice: str) -> None:
        super().__init__(path, position, problem, advice)
        self.path, self.position, self.problem, self.advice = path, position, problem, advice

    def __str__(self) -> str:
        return f"{self.path}, position {self.position}: {self.problem}; {self.advice}"


class CopyRefusedError(StoreError):
    """A copy of a master's log must not go on with what the master sends. Nothing of the copy was removed.

    Args:
        path: the directory of the copy.
        physical_offset: where in the log the problem lies.
        problem: what the master sent.
        advice: what the user can do.
    """

    def __init__(self, path: str, physical_offset: int, problem: str, advice: str) -> None:
        super().__init__(path, physical_offset, problem, advice)
        self.path, self.physical_offset, self.problem, self.advice = path, physical_offset, problem, advice

    def __str__(self) -> str:
        return f"{self.path}, physical offset {self.physical_offset}: {self.problem}; {self.advice}"


class StaleEpochError(StoreError):
    """A store was asked to take a role in an epoch that is over. A retry does not help.

    Args:
        epoch: number of the epoch.
        last_epoch: number of the newest epoch in which the log was written.
    """

    def __init__(self, epoch: int, last_epoch: int) -> None:
        super().__init__(epoch, last_epoch)
        self.epoch = epoch
        self.last_epoch = last_epoch

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch} is over: the log was written in epoch {self.last_epoch}, and no smaller one is allowed"
        )


class DiskError(StoreError):
    """The operating system refused a file operation (disk full, input/output error)."""

    def __init__(self, path: str, operation: str, reason: str, position: int = 0) -> None:
        super().__init__(path, operation, reason, position)
        self.path, self.operation, self.reason, self.position = path, operation, reason, position

    def __str__(self) -> str:
        return f"{self.path}: {self.operation} failed: {self.reason}"


class DiskFullError(DiskError):
    """No space or quota is left for ``operation``; the same call succeeds once space is available."""

    retriable = True


class ResourceError(DiskError):
    """The process or the system lacks something else than a sound disk for ``operation``. Nothing was changed; the same
    call succeeds once there is enough of it.
    """

    retriable = True


class TooManyFilesError(ResourceError):
    """No descriptor is left."""


class NoMemoryError(ResourceError):
    """No memory is left to map or open a file (``vm.max_map_count``, a limit of the process or its group)."""


class ForeignEntryError(DiskError):
    """What is at a path is not what a store has there: a link, a FIFO, a device, a directory instead of a file, or a
    file that is too long. It was not opened, read, followed or changed.
    """

    def __str__(self) -> str:
        return f"{self.path} {self.reason}; nothing was done with it; move it out of the way"


class DataLossError(StoreError):
    """Messages that a reader must deliver are gone, or are not yet readable again after a crash.

    Args:
        queue: topic, broker and queue id as text.
        wanted_start: first wanted queue offset.
        wanted_end: queue offset after the last wanted one.
        available_min: first available queue offset.
        available_max: queue offset after the last available one.
        advice: what the user can do; empty if the option ``failOnDataLoss`` helps.
    """

    SKIPS = (
        "failOnDataLoss=false (in Python fail_on_data_loss=False, in rucola spark archive --skip-lost) skips messages "
        "that expired or were deleted"
    )

    def __init__(
        self,
        queue: str,
        wanted_start: int,
        wanted_end: int,
        available_min: int,
        available_max: int,
        advice: str = "",
    ) -> None:
        super().__init__(queue, wanted_start, wanted_end, available_min, available_max, advice)
        self.queue, self.wanted_start, self.wanted_end = queue, wanted_start, wanted_end
        self.available_min, self.available_max = available_min, available_max
        self.advice = advice or self.SKIPS

    def __str__(self) -> str:
        return (
            f"queue {self.queue}: offsets {self.wanted_start} to {self.wanted_end} are wanted, "
            f"{self.available_min} to {self.available_max} exist (end offsets excluded); {self.advice}"
        )


class AnotherLogError(DataLossError):
    """The last record read is no longer at its offset: the queue was recreated, or the store is a different one."""

    SKIPS = "with failOnDataLoss=false, a stream continues with the records that were stored after the last record read"

    def __str__(self) -> str:
        return (
            f"queue {self.queue}: the record before offset {self.wanted_start} is not the one that was read: the queue "
            f"was recreated, or the store is a different one; offsets {self.available_min} to {self.available_max} "
            f"exist (end offset excluded); {self.advice}"
        )


class TableConflictError(RucolaError):
    """Another writer committed to an archived table first; this writer's commit was not made.

    Args:
        table: path or address of the table.
        version: version of the table that the other writer committed.
    """

    retriable = True

    def __init__(self, table: str, version: int) -> None:
        super().__init__(table, version)
        self.table, self.version = table, version

    def __str__(self) -> str:
        return f"table {self.table}: another writer committed version {self.version} first; try again"


class EtcdError(RucolaError):
    """etcd did not answer a call, or refused it.

    Args:
        endpoint: URL of the member that was asked last.
        operation: path of the call, for example ``/v3/kv/txn``.
        reason: what happened.
        code: etcd's code of the refusal (those of gRPC); 0 without an answer: the call may have been carried out.
    """

    retriable = True

    def __init__(self, endpoint: str, operation: str, reason: str, code: int = 0) -> None:
        super().__init__(endpoint, operation, reason, code)
        self.endpoint, self.operation, self.reason, self.code = endpoint, operation, reason, code

    def __str__(self) -> str:
        outcome = f"refused {self.operation} (code {self.code})" if self.code else f"did not answer {self.operation}"
        return f"etcd {self.endpoint} {outcome}: {self.reason}"


class RemotingError(RucolaError):
    """A connection failed or a peer did not respond."""

    retriable = True


class RemotingConnectError(RemotingError):
    """No connection to ``address``."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return f"cannot connect to {self.address}: {self.reason}"


class RemotingUnansweredError(RemotingError):
    """A request had no response; it may or may not have taken effect.

    Attributes:
        operation: what the request was for; empty if unknown.
    """

    operation: str

    def set_operation(self, operation: str) -> None:
        """Adds ``operation`` to the error, also for its copies and for other processes."""
        self.operation = operation
        self.args = (*self.args[:-1], operation)

    def _text(self, what: str) -> str:
        return f"{what}: {self.operation}" if self.operation else what


class RemotingTimeoutError(RemotingUnansweredError):
    """No response from ``address`` within ``timeout_ms``; the request may or may not have taken effect."""

    def __init__(self, address: str, timeout_ms: int, operation: str = "") -> None:
        super().__init__(address, timeout_ms, operation)
        self.address, self.timeout_ms, self.operation = address, timeout_ms, operation

    def __str__(self) -> str:
        return self._text(f"{self.address} did not answer within {self.timeout_ms} ms")


class RemotingClosedError(RemotingUnansweredError):
    """The connection to ``address`` closed before the response; the request may or may not have taken effect."""

    def __init__(self, address: str, operation: str = "") -> None:
        super().__init__(address, operation)
        self.address, self.operation = address, operation

    def __str__(self) -> str:
        return self._text(f"connection to {self.address} closed before the response")


class NoRouteError(RemotingError):
    """The route of a topic could not be fetched in time, so nothing was sent: no name server responded, or no broker is
    registered at it. A topic that does not exist is a ``TopicNotExistError``.

    Args:
        topic: the topic.
        reason: which name servers were asked, and what went wrong.
    """

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic, self.reason = topic, reason

    def __str__(self) -> str:
        return f"no route to topic {self.topic}: {self.reason}"


class BrokerError(RucolaError):
    """A server responded with a code other than success.

    Args:
        code: value of ``ResponseCode``.
        remark: the server's text.
        address: address of the server.
        code_name: name of the code; empty if unknown.
        broker_name: the broker's name; empty if only its address is known.
    """

    RETRIABLE_CODES = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})

    def __init__(self, code: int, remark: str, address: str = "", code_name: str = "", broker_name: str = "") -> None:
        super().__init__(code, remark, address, code_name, broker_name)
        self.code, self.remark, self.address = code, remark, address
        self.code_name, self.broker_name = code_name, broker_name
        self.retriable = code in self.RETRIABLE_CODES and not _refuses_account(code, remark)

    def __str__(self) -> str:
        code = f"code {self.code} {self.code_name}".rstrip()
        if not self.address:
            return f"{code}: {self.remark}"
        place = f"{self.broker_name} ({self.address})" if self.broker_name else self.address
        advice = "another try may succeed" if self.retriable else "another try will not help"
        return f"{place} answered {code}: {self.remark} ({advice})"


def _refuses_account(code: int, remark: str) -> bool:
    """Whether a server refused a request because of the sender's account or its own settings, so that another try will
    not help.

    NO_PERMISSION (16) can also mean that a broker, a topic or a group is closed to everyone for now, while another
    broker may accept the request. The access control of RocketMQ before 5.3 responds SYSTEM_ERROR (1), with the name of
    its exception in the remark.
    """
    return code in (1, 16) and any(text in remark for text in _REFUSED_ACCOUNTS[code])


_REFUSED_ACCOUNTS = {
    1: ("AclException", "AuthenticationException", "AuthorizationException"),
    16: (
        *("access denied", "AclException", "signature", "User:", "username", "has no permission to access"),
        "operation is forbidden",  # recallMessageEnable=false
    ),
}


class ClientError(RucolaError):
    """The client was used in an invalid way, or found no route."""


class TopicNotExistError(ClientError):
    """No broker has the topic, and none creates it automatically."""


class LiteQuotaError(ClientError):
    """A consumer may not subscribe to more lite topics.

    Args:
        lite_topics: the lite topics to which it is not subscribed.
        quota: the quota that is exceeded, and whose it is.
    """

    def __init__(self, lite_topics: list[str], quota: str) -> None:
        super().__init__(lite_topics, quota)
        self.lite_topics, self.quota = lite_topics, quota

    def __str__(self) -> str:
        more = f" and {len(self.lite_topics) - 1} more" if len(self.lite_topics) > 1 else ""
        return f"not subscribed to lite topic {self.lite_topics[0]}{more}: {self.quota}"


class RequestTimeoutError(RucolaError):
    """The reply to a request did not arrive in time. The request may have been consumed, and its reply may still
    arrive.

    Args:
        topic: topic of the request.
        msg_id: the request's UNIQ_KEY; empty if the request was not sent.
        timeout_ms: how long the caller waited.
    """

    retriable = True

    def __init__(self, topic: str, msg_id: str, timeout_ms: int) -> None:
        super().__init__(topic, msg_id, timeout_ms)
        self.topic, self.msg_id, self.timeout_ms = topic, msg_id, timeout_ms

    def __str__(self) -> str:
        return f"no reply to request {self.msg_id} of topic {self.topic} within {self.timeout_ms} ms"


class SendManyError(RucolaError):
    """Some of several messages were not sent, or their result is unknown.

    Args:
        outcomes: for each message, in order: its ``SendResult`` or its error.
    """

    def __init__(self, outcomes: list[object]) -> None:
        super().__init__(outcomes)
        self.outcomes = outcomes
        self.errors = {number: outcome for number, outcome in enumerate(outcomes) if isinstance(outcome, RucolaError)}
        self.retriable = any(error.retriable for error in self.errors.values())

    def __str__(self) -> str:
        number, error = next(iter(self.errors.items()))
        return f"{len(self.errors)} of {len(self.outcomes)} messages failed; the first, number {number}: {error}"


TOPICS_SHOWN = 10
"""Most topics that ``TopicsFailedError`` names in its text."""


class TopicsFailedError(RucolaError):
    """Some topics of a run failed; the run has done the work for all others.

    Args:
        failures: the error of each topic that failed.
        is_only: whether all topics of the run failed, with errors of one kind.
    """

    def __init__(self, failures: dict[str, RucolaError], is_only: bool = False) -> None:
        super().__init__(failures, is_only)
        self.failures, self.is_only = failures, is_only

    @property
    def only(self) -> RucolaError | None:
        """The first error, if all topics of the run failed with errors of its kind."""
        return self.failures[min(self.failures)] if self.is_only else None

    def __str__(self) -> str:
        shown = sorted(self.failures.items())[:TOPICS_SHOWN]
        texts = [f"{topic}: {error}" for topic, error in shown]
        if len(self.failures) > len(shown):
            texts.append(f"and {len(self.failures) - len(shown)} more")
        count = "1 topic" if len(self.failures) == 1 else f"{len(self.failures)} topics"
        return f"{count} failed, all others are done: {'; '.join(texts)}"


class TaskFailedError(RucolaError):
    """A job on Spark ended with an error; ``reason`` is the error of the task, ``kind`` its type if that is known."""

    def __init__(self, reason: str, kind: type[RucolaError] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind

    def __str__(self) -> str:
        return f"the job on Spark failed: {self.reason}"


class RefusedRowError(RucolaError):
    """Rows of a Spark query cannot be made into messages, or brokers refuse them.

    Args:
        count: number of refused rows among the rows sent together.
        topic: topic of the first refused row.
        msg_id: message id of the first refused row; empty if it has none.
        reason: why the first refused row was refused.
        is_letter: whether these are dead letters, which cannot be sent either.
    """

    def __init__(self, count: int, topic: str, msg_id: str, reason: str, is_letter: bool = False) -> None:
        super().__init__(count, topic, msg_id, reason, is_letter)
        self.count, self.topic, self.msg_id, self.reason = count, topic, msg_id, reason
        self.is_letter = is_letter

    def __str__(self) -> str:
        which = f" (id {self.msg_id})" if self.msg_id else ""
        advice = "deadLetterPath instead of deadLetterTopic" if self.is_letter else "deadLetterTopic or deadLetterPath"
        return (
            f"{self.count} rows cannot be sent, the first{which} to topic {self.topic}: {self.reason}; "
            f"{advice} sets such rows aside"
        )


class ConfigError(RucolaError):
    """An option is unknown, or has a value that is not allowed.

    Args:
        key: RocketMQ's name of the option.
        value: the value as text.
        allowed: what is allowed.
        argument: name of the Python argument that had the value; empty if the value came from a file or a request.
    """

    def __init__(self, key: str, value: str, allowed: str, argument: str = "") -> None:
        super().__init__(key, value, allowed, argument)
        self.key, self.value, self.allowed, self.argument = key, value, allowed, argument

    def __str__(self) -> str:
        name = f"{self.argument} ({self.key})" if self.argument else self.key
        return f"option {name}: {self.value!r} is not allowed; allowed: {self.allowed}"


class QueryError(ConfigError):
    """A query is not valid SQL, or it names something that does not exist.

    Args:
        value: the query, or the name.
        reason: what is wrong with ``value``, and what exists instead.
    """

    def __init__(self, value: str, reason: str) -> None:
        super().__init__("query", value, reason)
        self.args = (value, reason)

    def __str__(self) -> str:
        return f"query: {self.allowed}"


class MissingFileError(ConfigError):
    """An option names a file that cannot be read.

    Args:
        key: the option.
        value: the path.
        reason: why not.
    """

    def __init__(self, key: str, value: str, reason: str = "no such file") -> None:
        super().__init__(key, value, reason)
        self.args = (key, value, reason)

    def __str__(self) -> str:
        return f"option {self.key}: {self.value}: {self.allowed}"


class OptionsError(ConfigError):
    """Errors of several options; ``key``, ``value`` and ``allowed`` belong to the first error.

    Args:
        errors: one error for each of these options.
    """

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        super().__init__(errors[0].key, errors[0].value, errors[0].allowed)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        return f"{len(self.errors)} options: " + "; ".join(str(error).removeprefix("option ") for error in self.errors)


class AddressInUseError(RucolaError):
    """The port is already in use.

    Attributes:
        address: ``host:port``.
        option: the option that sets the port.
    """

    def __init__(self, address: str, option: str = "listenPort") -> None:
        super().__init__(address, option)
        self.address = address
        self.option = option

    def __str__(self) -> str:
        return f"address {self.address} is already in use; choose another port with {self.option}"


class AddressesInUseError(AddressInUseError):
    """Several ports are already in use; ``address`` and ``option`` belong to the first error.

    Args:
        errors: one error for each of these ports.
    """

    def __init__(self, errors: tuple[AddressInUseError, ...]) -> None:
        super().__init__(errors[0].address, errors[0].option)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        ports = ", ".join(f"{error.address} ({error.option})" for error in self.errors)
        return f"addresses are already in use: {ports}; choose other ports with these options"


def install_advice(extra: str) -> str:
    """How to install an extra; the texts of errors end with it. A distribution called ``rucola`` belongs to others."""
    return f"pip install 'rucola-mq[{extra}]', or '.[{extra}]' in a checkout"


class MissingProgramError(RucolaError):
    """A required program is not installed, or too old.

    Args:
        program: name of the program.
        found: what was found instead.
        advice: what to install.
    """

    def __init__(self, program: str, found: str, advice: str) -> None:
        super().__init__(program, found, advice)
        self.program, self.found, self.advice = program, found, advice

    def __str__(self) -> str:
        return f"{self.program} is needed, found {self.found}: {self.advice}"


class MissingExtraError(RucolaError):
    """Packages that a command or class needs are not installed.

    Args:
        user: the command or class that needs them.
        modules: the missing modules.
        extra: the extra that installs them.
    """

    def __init__(self, user: str, modules: tuple[str, ...], extra: str) -> None:
        super().__init__(user, modules, extra)
        self.user, self.modules, self.extra = user, modules, extra

    def __str__(self) -> str:
        return f"{self.user} needs {', '.join(self.modules)}: {install_advice(self.extra)}"
