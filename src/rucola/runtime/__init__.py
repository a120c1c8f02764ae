"""The only door to the outside: files, clock, threads, start and stop order, logs. All of it thin and injectable."""
