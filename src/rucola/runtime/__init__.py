"""Access to the operating system: files, clock, threads, start and stop order, logs. Every part is small and can be
replaced in tests.

For example::

    from rucola.runtime.clock import SystemClock
    from rucola.runtime.files import Files

    Files().replace_file("./note", b"whole or not at all, and synced")
    print(SystemClock().wall_ms(), Files().read_file("./note"))
"""
