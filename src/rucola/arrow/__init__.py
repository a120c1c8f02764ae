"""Reads topics as Arrow record batches, from a store directory in place or through brokers. Needs PyArrow only."""
