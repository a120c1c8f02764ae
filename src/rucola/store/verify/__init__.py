"""Checks a store directory, all files against each other."""
