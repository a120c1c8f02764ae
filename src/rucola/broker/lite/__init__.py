"""Lite topics: how a broker serves them. The store keeps their queues (``store.lite``)."""
