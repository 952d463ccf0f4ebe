"""Write TOPIC to Parquet files, each record once: python examples/spark/parquet_sink.py HOST:PORT TOPIC DIRECTORY"""

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import onceflow.spark
from onceflow.spark.exactly_once.checkpoint import sync_path
from onceflow.spark.sink import Batch, CommitUnknown, ExactlyOnce, Proof, Sink


class ParquetSink(Sink):
    """Table in a directory: Parquet files in `data/`; `manifests/7` lists those of batch 7 and holds its proof.

    Creating a manifest is atomic, and each number can be taken once: that is the commit, and the fence. Files in no
    manifest are left from failed attempts; delete them only while no query is running.
    """

    name = "parquet"

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.manifests = directory / "manifests"
        self.files: list[str] = []
        for folder in (self.data, self.manifests):
            folder.mkdir(parents=True, exist_ok=True)

    def recover(self, query: str) -> Proof | None:
        newest = max(map(int, manifests_in(self.manifests)), default=None)
        if newest is None:
            return None
        path = self.manifests / str(newest)
        return Proof.parse(str(path), json.loads(path.read_text())["proof"])

    def prepare(self, batch: Batch, proof: Proof | None) -> None:
        self.files = []

    def write(self, rows: DataFrame) -> None:
        # Spark returns the result of one successful attempt per task.
        self.files = [row.file for row in rows.mapInArrow(writer_to(str(self.data)), "file string").collect()]
        sync_path(self.data)

    def commit(self, proof: Proof) -> None:
        mine = self.manifests / f"{uuid.uuid4()}.unfinished"
        mine.write_text(json.dumps({"proof": proof.text(), "files": self.files}))
        sync_path(mine)
        try:
            os.link(mine, self.manifests / str(proof.batch))
        except FileExistsError as error:
            raise CommitUnknown(f"batch {proof.batch} has a manifest already: {error}") from error
        finally:
            mine.unlink()
        sync_path(self.manifests)


def manifests_in(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.isdecimal()]


def writer_to(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for tasks that writes rows to one file and returns its name."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path = Path(directory, f"{uuid.uuid4()}.parquet")
        file = None
        for batch in batches:
            file = file or pq.ParquetWriter(path, batch.schema)
            file.write_batch(batch)
        if file is not None:
            file.close()
            sync_path(path)
            yield pa.RecordBatch.from_pydict({"file": [path.name]})

    return write


def read_table(directory: Path) -> list[pa.Table]:
    """Return the committed files in the order of batches."""
    manifests = directory / "manifests"
    texts = [(manifests / name).read_text() for name in sorted(manifests_in(manifests), key=int)]
    return [pq.read_table(directory / "data" / file) for text in texts for file in json.loads(text)["files"]]


def main(bootstrap: str, topic: str, directory: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    rows = stream.options(subscribe=topic, startingOffsets="earliest").load()
    checkpoint = str(Path(directory, f"checkpoint-{bootstrap}-{topic}".replace(":", "-")))
    sink = ExactlyOnce(ParquetSink(Path(directory)), checkpoint=checkpoint)
    sink.open(spark)
    writer = rows.selectExpr("string(value) AS value", "timestamp").writeStream.foreachBatch(sink)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    sink.close()
    print(f"{directory} has {sum(map(len, read_table(Path(directory))))} records of {topic}, each once")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
        sys.exit(2)
    onceflow.spark.install_excepthook()
    main(*sys.argv[1:])
