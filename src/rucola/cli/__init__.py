"""The command line.

For example::

    from rucola.cli.main import main

    main(["store", "info", "./store"])  # what the shell command ``rucola store info ./store`` runs
"""
