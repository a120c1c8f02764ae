"""``python -m rucola.cli``: the command line."""

from rucola.cli.main import run

run()
