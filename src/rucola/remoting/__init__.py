"""Sockets for ``protocol``: a server and a client on asyncio. They transfer bytes and do not interpret requests."""
