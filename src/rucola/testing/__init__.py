"""Helpers for tests of this package and of its users. Outside of ``tests/`` only the lesson on crashes in the
laboratory imports them.
"""
