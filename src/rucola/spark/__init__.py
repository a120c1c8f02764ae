"""Spark reads the log: the ``rocketmq`` Data Source, batch and stream, through brokers or from a store directory.

Planning (``options``, ``schema``, ``offsets``, ``ranges``, ``admission``, ``catalog``) is pure and runs without Spark.
The faces (``source``, ``batch``, ``stream``) carry plain picklable data between Spark's processes. The readers
(``store_scan``, ``broker_pull``) need Arrow and the kernels and are imported inside ``read()``, because each of
Spark's worker processes pays for its imports.
"""
