"""Request processors: one module for each group of related requests."""
