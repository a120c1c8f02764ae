"""What a start does with what a stop or a crash left."""
