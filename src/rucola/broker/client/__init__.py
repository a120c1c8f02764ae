"""The clients at the other end: producers, consumers, their locks."""
