"""A copy of a master's log: sockets and tasks around the decisions of ``store.ha``."""
