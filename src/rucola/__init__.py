"""RocketMQ's message store, broker and clients in Python."""
