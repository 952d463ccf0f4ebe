"""A driver process that writes each micro-batch's rows to a file.

If a repeated batch has other rows, the driver writes them to the file `different`.
Arguments: `bootstrap topic checkpoint directory java_home`.
"""

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from onceflow.spark.session import build_session


def keep(directory: Path, frame: DataFrame, batch_id: int) -> None:
    rows = sorted((row.partition, row.offset, row.value.decode()) for row in frame.collect())
    text = "".join(f"{partition} {offset} {value}\n" for partition, offset, value in rows)
    path = directory / f"batch-{batch_id}"
    if path.exists() and path.read_text() != text:
        (directory / "different").write_text(f"batch {batch_id}\n{path.read_text()}\n{text}")
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def main(bootstrap: str, topic: str, checkpoint: str, directory: str, java_home: str) -> None:
    spark = build_session("keeps", "local[2]", java_home=java_home, log_file=Path(directory, "driver.log"))
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    options = {"subscribe": topic, "startingOffsets": "latest", "maxOffsetsPerTrigger": "1000"}
    writer = stream.options(**options).load().writeStream.foreachBatch(partial(keep, Path(directory)))
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
