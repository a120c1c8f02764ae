"""Helpers for tests, ours and those of users. Nothing outside ``tests/`` imports them but the lesson on crashes."""
