"""Requests that wait for something to happen."""
