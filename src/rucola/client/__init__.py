"""Asynchronous producer and consumers. ``rucola.sync``, generated from here, has the same names with blocking calls."""
