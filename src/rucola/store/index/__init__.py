"""The index files, which find messages by key."""
