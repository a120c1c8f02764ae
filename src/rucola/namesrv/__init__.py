"""The name server: brokers register with it, and clients ask it for routes."""

from rucola.namesrv.namesrv import NameServer, NamesrvConfig

__all__ = ["NameServer", "NamesrvConfig"]
