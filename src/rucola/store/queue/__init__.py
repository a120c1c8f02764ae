"""Consume queues of all kinds."""
