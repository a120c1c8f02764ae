"""Asynchronous producer and consumers. ``rucola.sync`` is generated from this package; it has the same names with
blocking calls.
"""
