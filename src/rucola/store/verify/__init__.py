"""Checks a store directory: compares all files with each other."""
