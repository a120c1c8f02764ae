"""Sockets around ``protocol``: a server and a client on asyncio. They move bytes; what the bytes mean is decided elsewhere."""
