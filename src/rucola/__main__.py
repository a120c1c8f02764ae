"""``python -m rucola``: the command line."""

from rucola.cli.main import run

run()
