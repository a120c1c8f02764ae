"""Makes ``format("rocketmq")`` known to Spark, which imports every top-level module named ``pyspark_*`` to find it.

Keep this module light: Spark imports it in planning processes. If one module ``pyspark_*`` cannot be imported, Spark
finds none of the others.
"""

from rucola.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
