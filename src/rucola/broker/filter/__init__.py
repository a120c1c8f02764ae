"""SQL92 filters: the compiled subscriptions of groups, and reads that return only matching messages."""
