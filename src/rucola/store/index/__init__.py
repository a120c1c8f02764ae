"""The index files: messages by key."""
