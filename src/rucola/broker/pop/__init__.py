"""Popped messages: who has them, until when, and what becomes of those that nobody acknowledges."""
