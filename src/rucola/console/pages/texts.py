"""The catalogue of texts. English texts are the keys; the Chinese ones are in ``chinese.json``.

Places in a text are ``{name}``. A test compares the catalogue with the texts of templates and code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from rucola.common.json_library import orjson

CATALOGUE: Final = Path(__file__).parent / "chinese.json"


@cache
def chinese() -> Mapping[str, str]:
    """The Chinese texts by their English ones."""
    found: dict[str, str] = orjson.loads(CATALOGUE.read_bytes())
    return found


def translate(language: str, text: str, **values: object) -> str:
    """A text in a language, with its values. A text that is not in the catalogue stays English."""
    found = chinese().get(text, text) if language == "zh" else text
    return found.format(**values) if values else found
