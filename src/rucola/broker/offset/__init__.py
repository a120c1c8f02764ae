"""Consumer offsets: the progress of the consumer groups."""
