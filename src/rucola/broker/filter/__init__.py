"""SQL92 subscriptions: the subscriptions of groups, and filtered reads."""
