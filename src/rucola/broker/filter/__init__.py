"""SQL92 subscriptions: what groups subscribed to, and reading with it."""
