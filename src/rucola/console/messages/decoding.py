"""Bodies in Avro or Protocol Buffers as text. The schemas are files that the operator names; all are read at the start.

A body is a stranger's: its length, and what comes out of it, are bounded.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from rucola.errors import ConfigError, RucolaError
from rucola.runtime.extras import SCHEMAS, require
from rucola.runtime.files import Files

KEY: Final = "bodySchemas"
BODY_BYTES_MAX: Final = 256 * 1024
TEXT_CHARACTERS_MAX: Final = 64 * 1024
SCHEMA_BYTES_MAX: Final = 4 * 1024 * 1024
_ENTRY: Final = re.compile(r"(?P<file>.+?)(#(?P<message>[\w.]+))?(\+(?P<skip>\d{1,4}))?")
_ALLOWED: Final = "TOPIC=FILE.avsc[+SKIP] or TOPIC=FILE.desc#MESSAGE[+SKIP], separated by commas"


class DecodeError(Exception):
    """A body that does not have the form of its schema; ``args[0]`` says why."""


@dataclass(frozen=True, slots=True)
class TopicDecoder:
    """Makes text of the bodies of a topic.

    Attributes:
        name: name of the record or message.
        skip_bytes: bytes before the content.
    """

    name: str
    skip_bytes: int
    _decode: Callable[[bytes], Any]

    def text(self, body: bytes) -> str:
        """The content of a body as indented JSON, at most ``TEXT_CHARACTERS_MAX`` characters of it.

        Raises:
            DecodeError: the body is too long, or does not have this form.
        """
        if len(body) > BODY_BYTES_MAX:
            raise DecodeError(f"{len(body):,} bytes; at most {BODY_BYTES_MAX:,} are decoded")
        if len(body) < self.skip_bytes:
            raise DecodeError(f"shorter than the {self.skip_bytes} bytes to skip")
        try:
            value = self._decode(body[self.skip_bytes :])
            text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
        except Exception as error:  # noqa: BLE001 - a decoder may raise anything for unknown bytes
            raise DecodeError(f"{type(error).__name__}: {error}"[:300]) from None
        return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}\n…"


class BodyDecoders:
    """The decoders by topic.

    Args:
        text: the option ``bodySchemas``.

    Raises:
        ConfigError: an entry or a file is not allowed.
        MissingExtraError: the packages for it are not installed.
    """

    def __init__(self, text: str = "") -> None:
        entries = [entry.strip() for entry in text.split(",") if entry.strip()]
        if entries:
            require(SCHEMAS, f"the option {KEY}")
        self._decoders: Mapping[str, TopicDecoder] = dict(map(_loaded, entries))

    def of(self, topic: str) -> TopicDecoder | None:
        """The decoder of a topic."""
        return self._decoders.get(topic)


def _loaded(entry: str) -> tuple[str, TopicDecoder]:
    topic, equals, rest = entry.partition("=")
    found = _ENTRY.fullmatch(rest)
    if not topic or not equals or found is None:
        raise ConfigError(KEY, entry, _ALLOWED)
    message, skip_bytes = found["message"], int(found["skip"] or 0)
    files = Files()
    try:
        content = files.read_file(files.expand(found["file"]), SCHEMA_BYTES_MAX)
    except RucolaError as error:
        raise ConfigError(KEY, entry, f"a file that can be read ({error})") from None
    if content is None:
        raise ConfigError(KEY, entry, "a file that exists")
    name, decode = _avro(content, entry) if message is None else _protobuf(content, message, entry)
    return topic, TopicDecoder(name, skip_bytes, decode)


def _avro(content: bytes, entry: str) -> tuple[str, Callable[[bytes], Any]]:
    from fastavro import parse_schema, schemaless_reader
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        document = json.loads(content)
        schema: Any = parse_schema(document)
    except (ValueError, RecursionError, SchemaParseException, UnknownType) as error:
        raise ConfigError(KEY, entry, f"an Avro schema as JSON ({error!r})"[:300]) from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(KEY, entry, "an Avro schema of a record")
    if _has_empty_items(schema):
        # A few bytes could say that thousands of millions of them follow.
        raise ConfigError(KEY, entry, "an Avro schema without arrays of items that take no bytes")

    def decode(body: bytes) -> Any:
        source = io.BytesIO(body)
        value = schemaless_reader(source, schema, None)
        if source.tell() < len(body):
            raise ValueError(f"{len(body) - source.tell()} bytes are left after the datum")
        return value

    return str(schema["name"]), decode


def _protobuf(content: bytes, message: str, entry: str) -> tuple[str, Callable[[bytes], Any]]:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError as ProtobufError

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except (ProtobufError, KeyError, TypeError) as error:
        raise ConfigError(KEY, entry, f"a descriptor set with message {message} ({error!r})"[:300]) from None

    def decode(body: bytes) -> Any:
        return json_format.MessageToDict(kind.FromString(body), preserving_proto_field_name=True, descriptor_pool=pool)

    return message, decode


def _has_empty_items(schema: Any) -> bool:
    """Whether a schema has an array whose items may take no bytes."""
    parts = list(_parts(schema))
    empty: set[str] = set()
    for _ in parts:  # a record may be empty because another one is
        empty |= {part["name"] for part in parts if "name" in part and _takes_no_bytes(part, empty)}
    return any(part["type"] == "array" and _takes_no_bytes(part["items"], empty) for part in parts)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all those in it that are not only names."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    elif isinstance(schema, dict):
        yield schema
        for part in (schema.get("items"), schema.get("values"), *(one["type"] for one in schema.get("fields", ()))):
            yield from _parts(part)


def _takes_no_bytes(schema: Any, empty: Set[str]) -> bool:
    """Whether a value takes no bytes; ``empty``: the named types of which this is known."""
    if not isinstance(schema, dict):
        return schema == "null" or (isinstance(schema, str) and schema in empty)
    if schema["type"] in ("record", "error"):
        return all(_takes_no_bytes(field["type"], empty) for field in schema["fields"])
    return bool(schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0))


def _plain(value: Any) -> str:
    """Values of Avro that JSON does not have."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise TypeError(f"no JSON for {type(value).__name__}")
