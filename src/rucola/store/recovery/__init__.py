"""Recovery: what a start does with the files that a stop or a crash left."""
