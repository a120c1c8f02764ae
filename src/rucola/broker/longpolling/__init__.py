"""Requests that wait for an event."""
