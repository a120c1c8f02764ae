"""Queues of lite topics: millions of them in a few files (``formats.lite``)."""
