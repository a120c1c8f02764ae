"""The job that `cluster` submits: reads a topic, copies it with a stream, and reports where its tasks ran.

Arguments: name server, topic to read, messages in it, topic to write, directory for the checkpoint; then, for Spark
Connect, the URL of the server and the archive. The job prints one JSON object. It imports only PySpark, because the
driver needs no more.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def where(_: int) -> str:
    """Returns facts about the task: its interpreter, the path of the package, and whether the kernels are compiled."""
    import os
    import shutil
    import sys

    import rucola
    from rucola.formats import _message_cy

    compilers = [name for name in ("cc", "gcc", "g++", "clang") if shutil.which(name)]
    inside = os.path.realpath(rucola.__file__).startswith(os.path.realpath(os.getcwd()))  # noqa: PTH109
    return json.dumps([os.getcwd(), sys.prefix, inside, _message_cy._is_compiled(), compilers])  # noqa: PTH109


def main(
    namesrv: str, read: str, count: int, written: str, directory: str, remote: str = "", archive: str = ""
) -> None:
    """Runs the job."""
    builder = SparkSession.builder.appName("rucola-cluster")
    spark = (builder.remote(remote) if remote else builder).getOrCreate()
    if archive:
        spark.addArtifacts(f"{archive}#environment", archive=True)
    places = [json.loads(row[0]) for row in spark.range(0, 8, 1, 8).select(f.udf(where)("id")).distinct().collect()]
    found = spark.read.format("rocketmq").options(nameServer=namesrv, topic=read).load()
    told = found.agg(f.count("*"), f.countDistinct("msgId"), f.sum(f.length("body"))).first()
    assert told is not None
    stream = spark.readStream.format("rocketmq").options(nameServer=namesrv, topic=read, startingOffsets="earliest")
    copy = stream.load().writeStream.format("rocketmq").options(nameServer=namesrv, topic=written)
    query = copy.option("checkpointLocation", directory).trigger(availableNow=True).start()
    query.awaitTermination()
    copied = spark.read.format("rocketmq").options(nameServer=namesrv, topic=written).load().count()
    print("RESULT " + json.dumps({"places": places, "read": list(told), "copied": copied, "wanted": count}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
