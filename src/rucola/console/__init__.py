"""The console: what operators open to see a cluster and to mend it. A process of its own; no server needs it.

For example::

    from rucola.console import Console, ConsoleConfig

    console = Console(ConsoleConfig(clusters="127.0.0.1:9876", port=0, data="./console"))
    await console.start()
    print(f"http://{console.address}")
    await console.stop()
"""

from rucola.console.config import ConsoleConfig
from rucola.console.console import Console

__all__ = ["Console", "ConsoleConfig"]
