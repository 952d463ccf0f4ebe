"""Program for one PySpark: BOOTSTRAP TOPIC COPY CHECKPOINT LIMIT. It prints its results as a line of JSON."""

import json
import os
import sys

import pyspark
from pyspark.sql import DataFrame

from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.session import build_session


def main(bootstrap: str, topic: str, copy: str, checkpoint: str, *, limit: int) -> None:
    """Read the topic as a batch, then copy it as a stream of micro-batches with at most `limit` records each."""
    spark = build_session("compat", "local[2]", java_home=os.environ["JAVA_HOME"])
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("onceflow").options(**options).load().selectExpr("string(value) AS value")
    read = sorted(row.value for row in batch.collect())

    sink = kafka_sink(bootstrap, topic=copy, checkpoint=checkpoint)
    sizes = []

    def write(rows: DataFrame, batch_id: int) -> None:
        sizes.append(rows.count())
        sink(rows, batch_id)

    stream = spark.readStream.format("onceflow").options(**options, maxOffsetsPerTrigger=limit).load()
    sink.open(spark)
    query = (
        stream.select("key", "value", "timestamp")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sink.close()
    spark.stop()
    print(json.dumps({"version": pyspark.__version__, "read": read, "batches": sizes}))


if __name__ == "__main__":
    *places, records_max = sys.argv[1:]
    main(*places, limit=int(records_max))
