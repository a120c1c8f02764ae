"""Sockets around ``protocol``: a server and a client on asyncio. They move bytes; others decide what the bytes mean."""
