"""Spark reads and writes messages: the ``rocketmq`` Data Source, in batches and streams, through brokers or from a
store directory.

Planning (``options``, ``admission``, and the modules of ``rucola.arrow`` that it uses) is pure and runs without Spark.
The classes that Spark calls (``source``, ``batch``, ``stream``) exchange only plain data, which Spark can pickle and
send to its processes. The code that reads messages is in ``rucola.arrow``. A worker process imports this code only when
``read()`` runs, so only the processes that read messages pay for the import.

For example::

    flights = spark.read.format("rocketmq").option("storePath", "./store").option("topic", "flights").load()
    flights.groupBy("tags").count().show()
"""
