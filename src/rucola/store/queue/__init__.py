"""The consume queues of all kinds."""
