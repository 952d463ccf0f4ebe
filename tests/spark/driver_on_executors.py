"""A driver process with executor processes that copies a topic until the file STOP exists, then the rest of the topic.

Arguments: `bootstrap input output checkpoint directory java_home executors`.
"""

import sys
import time
from pathlib import Path

from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.session import build_session

STOP = "stop"
SETTINGS = {
    # Killed executors are replaced, and their tasks are repeated elsewhere, without limit.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.excludeOnFailure.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def main(
    bootstrap: str, source: str, target: str, checkpoint: str, directory: str, java_home: str, executors: str
) -> None:
    log, master = Path(directory, "driver.log"), f"local-cluster[{executors},1,1024]"
    spark = build_session("copies", master, java_home=java_home, log_file=log, extra_conf=SETTINGS)
    sink = kafka_sink(bootstrap, topic=target, checkpoint=checkpoint, compression="lz4")
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500", "minPartitions": "4"}
    rows = stream.options(**options).load().select("key", "value")
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    while not Path(directory, STOP).exists():
        query.awaitTermination(0.2)  # type: ignore[arg-type]
        if not query.isActive:
            raise SystemExit(f"the query has ended: {sink.failure or query.exception()}")
        time.sleep(0.05)
    query.processAllAvailable()
    query.stop()
    sink.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
