"""Makes ``format("rocketmq")`` known to Spark, which imports every top-level module named ``pyspark_*`` to find it.

Keep it light: Spark imports it in planning processes, and one that fails to import hides the others as well.
"""

from rucola.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
