"""The commit log: its segments, how they are made, read and written."""
