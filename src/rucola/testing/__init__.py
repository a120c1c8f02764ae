"""Helpers for tests of this package and of its users. Elsewhere in ``src/``, only the laboratory's lesson on crashes
imports them.
"""
