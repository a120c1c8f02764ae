"""Spark reads the log: the ``rocketmq`` Data Source, batch and stream, through brokers or from a store directory.

Planning (``options``, ``admission``, and in ``rucola.arrow`` what it shares) is pure and runs without Spark. The faces
(``source``, ``batch``, ``stream``) carry plain picklable data between Spark's processes. What reads is in
``rucola.arrow`` and imported inside ``read()``, because each of Spark's worker processes pays for its imports.
"""
