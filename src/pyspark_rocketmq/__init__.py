"""Makes ``format("rocketmq")`` known to Spark, which imports every top-level module named ``pyspark_*`` to find it.

Import nothing slow here: Spark also imports this module in the Python processes that plan queries. If one module
``pyspark_*`` cannot be imported, Spark finds none of the others.
"""

from rucola.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
