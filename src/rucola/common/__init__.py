"""Value types and constants used by every layer. Imports only ``rucola.errors``."""
