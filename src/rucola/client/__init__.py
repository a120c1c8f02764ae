"""Producer and consumers, async. The same names with blocking calls are in ``rucola.sync``, generated from here."""
