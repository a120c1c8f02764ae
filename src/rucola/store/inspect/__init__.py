"""Tools that look into a store and change nothing: what it is, what its bytes mean, where a message is."""
