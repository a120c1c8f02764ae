"""The message store: commit log, consume queues, index, flush, recovery. Synchronous; knows nothing of the wire."""
