"""Helpers for tests of this package and of its users. Outside ``tests/`` only the lesson on crashes imports them."""
