"""A copy of a master's log: what a slave decides, without sockets and without a clock."""
