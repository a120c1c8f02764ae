"""Messages with a delivery time of their own."""
