"""The message store: commit log, consume queues, index, flush and recovery. It is synchronous and independent of the
network protocol.
"""
