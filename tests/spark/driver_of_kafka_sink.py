"""A driver of its own that copies a topic, killed with its JVM at a named point of the sink.

`bootstrap input output checkpoint log java_home point visit`
"""

import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.session import build_session


def main(bootstrap: str, source: str, target: str, checkpoint: str, log: str, java_home: str, *death: str) -> None:
    spark = build_session("copies", "local[2]", java_home=java_home, log_file=Path(log))
    visits: Counter[str] = Counter()

    def at(point: str) -> None:
        visits[point] += 1
        if death == (point, str(visits[point])):
            # The group is this process and the JVM that it started; Spark's workers end when the JVM is gone.
            os.killpg(os.getpgid(0), signal.SIGKILL)

    sink = kafka_sink(bootstrap, topic=target, checkpoint=checkpoint, compression="lz4")
    sink.settings = replace(sink.settings, at=at)
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    rows = stream.options(**options).load().select("key", "value")
    query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
