"""Delayed messages: the timer log, the timer wheel, and the progress of both."""
