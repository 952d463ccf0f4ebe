"""A driver that writes windows of ten rows to Parquet: `bootstrap topic checkpoint output log java_home`."""

import sys
from pathlib import Path

from onceflow.spark.session import build_session
from onceflow.spark.windows import window_by_count


def main(bootstrap: str, topic: str, checkpoint: str, output: str, log_file: str, java_home: str) -> None:
    spark = build_session("windows", "local[2]", java_home=java_home, log_file=Path(log_file))
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    windows = window_by_count(stream.options(**options).load(), 10, 4)
    writer = windows.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
