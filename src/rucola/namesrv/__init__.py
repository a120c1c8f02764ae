"""The name server: brokers register here, clients ask for routes."""

from rucola.namesrv.namesrv import NameServer, NamesrvConfig

__all__ = ["NameServer", "NamesrvConfig"]
