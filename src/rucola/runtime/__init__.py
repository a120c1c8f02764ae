"""Access to the operating system: files, clock, threads, start and stop order, logs. Every part is small and can be
replaced in tests.
"""
