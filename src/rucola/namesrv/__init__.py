"""The name server: brokers register with it, and clients ask it for routes.

For example::

    from rucola.namesrv.namesrv import NameServer, NamesrvConfig

    server = NameServer(NamesrvConfig(listen_port=0))
    await server.start()
    print(server.address)
    await server.shutdown()
"""

from rucola.namesrv.namesrv import NameServer, NamesrvConfig

__all__ = ["NameServer", "NamesrvConfig"]
