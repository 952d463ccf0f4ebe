"""A driver process that is killed with its JVM within batch 0.

Arguments: `bootstrap topic checkpoint log java_home`.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from onceflow.spark.session import build_session


def die(frame: DataFrame, batch_id: int) -> None:
    """Kill this process and the JVM that it started; Spark's workers end after the JVM."""
    assert batch_id == 0
    assert frame.count() == 0
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(bootstrap: str, topic: str, checkpoint: str, log_file: str, java_home: str) -> None:
    spark = build_session("dies", "local[2]", java_home=java_home, log_file=Path(log_file))
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    frame = stream.option("subscribe", topic).option("startingOffsets", "latest").load()
    query = frame.writeStream.foreachBatch(die).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
