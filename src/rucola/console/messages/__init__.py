"""Messages: where to find them, and what their bytes say."""
