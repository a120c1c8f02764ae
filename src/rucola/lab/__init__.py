"""The engine laboratory: tests, on this machine, common claims about the storage engines of message brokers.

Each lesson is a module of the package ``lessons``. This package is a tool and not a part of the engine; only the
command ``rucola lab`` imports it. Unlike the engine, lessons may open files and read clocks without
``rucola.runtime`` (decision 6).

For example::

    from rucola.cli.main import main

    main(["lab", "list"])
"""
