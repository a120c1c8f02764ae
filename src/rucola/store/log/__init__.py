"""The commit log: how its segments are created, read and written."""
