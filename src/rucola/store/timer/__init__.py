"""Delayed messages: the timer log, the timer wheel, and how much of both is on the disk."""
