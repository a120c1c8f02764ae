"""Messages that are held back until their time."""
