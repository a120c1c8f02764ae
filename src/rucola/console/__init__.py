"""The console: what operators open to see a cluster and to mend it. A process of its own; no server needs it.

Names are imported when first used: ``rucola top`` looks at clusters with ``cluster/``, without a web server.

For example::

    from rucola.console import Console, ConsoleConfig

    console = Console(ConsoleConfig(clusters="127.0.0.1:9876", port=0, data="./console"))
    await console.start()
    print(f"http://{console.address}")
    await console.stop()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rucola.console.config import ConsoleConfig
    from rucola.console.console import Console

__all__ = ["Console", "ConsoleConfig"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("rucola.console.console")
    for each in __all__:
        globals()[each] = getattr(module, each)
    return globals()[name]
