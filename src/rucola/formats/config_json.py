"""The JSON dialect of the files in ``config/``, as written by fastjson 1.2.83 in its pretty format.

The writer uses one tab per level, no space after ``:`` and no line break at the end. A map with integer keys has
unquoted keys and all entries on one line; its ``}`` stands on the next line. The reader accepts this form, standard
JSON, and references to another object in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from rucola.common.json_library import orjson
from rucola.errors import FormatError

DEPTH_MAX: Final = 32
"""Largest depth of nested objects and arrays. The files in ``config/`` have at most seven levels."""
UNREADABLE_JSON: Final = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
"""What Python's JSON, and access to what it returns, may raise if somebody else wrote the text: it may be nested too
deeply, and a number may be infinite.
"""
_STRING_OR_KEY: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|(?<=[{,\s])(-?[0-9]+)(?=\s*:)')
_KEY: Final = re.compile(rb"(?<=[{,])(-?[0-9]+)(?=:)")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")
_MEMBER_LINE: Final = "\n\t"
ENTRY_LINE: Final = "\n\t\t"
"""Line break and indentation of the entries of ``dumps_table``."""
_PIECE: Final = 256
"""Number of table entries that are encoded at a time; encoding them takes well under a millisecond."""
_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)},
    **{ord(char): "\\" + escape for char, escape in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)},
}


def loads_object(text: bytes, what: str) -> dict[str, Any]:
    """Parses the object in ``text``; integer keys become strings.

    Args:
        what: name of the file, for errors.

    Raises:
        FormatError: ``text`` is not a JSON object in this dialect, has more than ``DEPTH_MAX`` levels, or holds a
            reference to a missing object.
    """
    try:
        value = _loads(text)
    except orjson.JSONDecodeError as error:
        raise FormatError(what, error.pos, "JSON", error.msg) from error
    if not isinstance(value, dict):
        raise FormatError(what, 0, "a JSON object", type(value).__name__)
    _check_depth(value, what)
    return _resolve(value, value, what) if b'"$ref"' in text else value


def _loads(text: bytes) -> Any:
    """Parses the value in ``text``. Tries three parsers in turn; only the last one understands every text, and it takes
    ten times as long.

    The second parser puts quotation marks around integer keys, but also around the 1 in a string like ``"a,1:b"``. The
    string then ends too early. The result is not JSON, so the third parser follows.
    """
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(text)
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(b'"'.join(_KEY.split(text)))  # split and join are several times as fast as ``sub``
    return orjson.loads(_STRING_OR_KEY.sub(_quote_key, text))


def _check_depth(value: dict[str, Any], what: str) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        objects = [outer.values() if type(outer) is dict else outer for outer in level]
        level = [member for members in objects for member in members if type(member) is dict or type(member) is list]
        if not level:
            return
    raise FormatError(what, 0, f"at most {DEPTH_MAX} levels", "more")


def _quote_key(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else b'"%b"' % match[1]


def _resolve(value: Any, root: dict[str, Any], what: str) -> Any:
    """Returns ``value`` with each ``{"$ref":"$.path"}`` replaced by the object at that path of ``root``."""
    if isinstance(value, list):
        return [_resolve(member, root, what) for member in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"$ref"}:
        return {key: _resolve(member, root, what) for key, member in value.items()}
    target: Any = root
    path = str(value["$ref"])
    try:
        for name, index in _STEP.findall(path.removeprefix("$")):
            target = target[name] if name else target[int(index)]
    except (KeyError, IndexError, TypeError) as error:
        raise FormatError(what, 0, "a reference to an object in the file", path) from error
    if not path.startswith("$") or b'"$ref"' in orjson.dumps(target):
        raise FormatError(what, 0, "a reference to an object without references", path)
    return target


def dumps_pretty(value: Any) -> bytes:
    """Returns ``value`` as text in the dialect. Accepts dict, list (one element per line), tuple (all on one line),
    str, int, bool, None.

    Members keep their order.

    Raises:
        TypeError: for any other type.
    """
    return _dump(value, "\n").encode("utf-8", "surrogatepass")


def dumps_table(head: Mapping[str, Any], name: str, entries: Iterable[str]) -> Iterator[bytes]:
    """Yields the text of an object piece by piece: the members of ``head``, then the map ``name`` with many entries.

    Args:
        entries: entries of the map, each as ``dump_entry`` returns it.
    """
    members = "".join(f"\n\t{dump_text(key)}:{_dump(value, _MEMBER_LINE)}," for key, value in head.items())
    text = f"{{{members}\n\t{dump_text(name)}:{{"
    rest, end = iter(entries), "}\n}"
    while piece := ",".join(islice(rest, _PIECE)):
        yield (text + piece).encode("utf-8", "surrogatepass")
        text, end = ",", "\n\t}\n}"
    yield ((text if text != "," else "") + end).encode("utf-8", "surrogatepass")


def dump_entry(key: str, value: str) -> str:
    """Returns an entry for ``dumps_table``; ``value`` is what ``dump_value`` returned."""
    return f"{ENTRY_LINE}{dump_text(key)}:{value}"


def dump_value(value: Any, line: str) -> str:
    """Returns ``value`` in the dialect, as ``dumps_pretty`` writes it; ``line`` is a line break plus the indentation of
    the line that holds the value.
    """
    return _dump(value, line)


def dump_text(text: str) -> str:
    """Returns ``text`` as a string of the dialect."""
    return f'"{text.translate(_ESCAPES)}"'


def _dump(value: Any, line: str) -> str:
    """Returns ``value`` as text; ``line`` is a line break plus the indentation of the line that holds the value."""
    deeper = line + "\t"
    if isinstance(value, str):
        return dump_text(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ",".join(_dump(member, deeper) for member in value) + "]"
    if isinstance(value, list):
        return "[" + ",".join(deeper + _dump(member, deeper) for member in value) + (line if value else "") + "]"
    if isinstance(value, dict):
        if not value:
            return "{}"
        if all(isinstance(key, int) for key in value):
            return "{" + ",".join(f"{key}:{_dump(member, deeper)}" for key, member in value.items()) + line + "}"
        return "{" + ",".join(f"{deeper}{_dump(key, line)}:{_dump(value[key], deeper)}" for key in value) + line + "}"
    raise TypeError(f"{type(value).__name__} cannot be written to a configuration file")
