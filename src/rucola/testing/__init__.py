"""Helpers for tests of this package and of its users. Apart from ``tests/``, only the laboratory's lesson on crashes
imports them.
"""
