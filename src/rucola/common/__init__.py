"""Value types and constants that every layer speaks. Imports ``rucola.errors`` only."""
