"""Names and paths that come from data: from tables, journals, results of tasks. One question decides for all of them
whether they may be used below a directory.
"""

from __future__ import annotations

_NAME_BYTES_MAX = 255


def is_plain_name(name: str) -> bool:
    """Whether ``name`` is the name of one file or directory, and leads nowhere else: no separator, not ``.`` or ``..``,
    no control character, at most 255 bytes.
    """
    return (
        name not in ("", ".", "..")
        and not any(char in "/\\" or ord(char) < 32 or ord(char) == 127 for char in name)
        and len(name.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX
    )


def is_path_below(path: str) -> bool:
    """Whether ``path`` names something below the directory that it is relative to, without a detour."""
    return all(map(is_plain_name, path.split("/")))
