"""The connected clients: producers, consumers, and their queue locks."""
