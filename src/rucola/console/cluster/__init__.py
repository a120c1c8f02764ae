"""What the console knows of clusters: snapshots that a poller makes, and questions about one object."""
