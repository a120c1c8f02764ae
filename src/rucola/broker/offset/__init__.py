"""Progress of the consumer groups."""
