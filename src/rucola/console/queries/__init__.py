"""Queries over topics, each in a process of its own that can be killed."""
