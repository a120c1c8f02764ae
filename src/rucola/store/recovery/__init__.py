"""Recovery: how start-up treats the files that a stop or a crash left."""
