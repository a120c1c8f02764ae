"""Messages that wait for a time: the timer log, the timer wheel, and how far both are on the disk."""
