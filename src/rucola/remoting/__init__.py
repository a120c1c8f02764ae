"""Sockets for ``protocol``: a server and a client on asyncio. They transfer bytes and do not interpret requests.

For example::

    from rucola.protocol.codes import RequestCode
    from rucola.protocol.command import RemotingCommand
    from rucola.remoting.client import RemotingClient

    client = RemotingClient()
    asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "flights"})
    print((await client.invoke("127.0.0.1:9876", asked, 3000)).body)
    await client.close()
"""
