"""Delayed messages by delay level."""
