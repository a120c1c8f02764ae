"""The broker's consumer groups."""
