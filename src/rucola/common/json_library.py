"""The JSON library, in a version that refuses deep documents. Version 3.8.3 ends the process on them."""

from __future__ import annotations

import orjson

__all__ = ["orjson"]

OLDEST = (3, 10)

if tuple(int(part) for part in orjson.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(f"orjson {orjson.__version__} is too old: rucola needs {'.'.join(map(str, OLDEST))} or newer")
