"""Reads a store directory without changing a byte of it."""
