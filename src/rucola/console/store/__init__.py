"""Stores on this machine: a child process reads them, so that neither a page nor a visitor waits for another's work."""
