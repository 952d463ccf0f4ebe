"""Mission A2: the source beside a TCP socket and files in one query; union and join of plain DataFrames."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from onceflow.client.cluster import Cluster
from tests.spark.slow_workers import is_too_slow

WITHIN_S = 240


@contextlib.contextmanager
def lines_over_tcp(*lines: str) -> Iterator[int]:
    """Serve a port that sends the lines to each client and then waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connected.append(server.accept()[0])
                    connected[-1].sendall("".join(f"{line}\n" for line in lines).encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in connected:
                connection.close()


def test_union_and_join_with_other_sources(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    send: Callable[..., None],
    tmp_path: Path,
    checkpoint: Path,
) -> None:
    cluster.create_topic(topic, 1)
    send(["ada", "bob"])
    files = tmp_path / "files"
    files.mkdir()
    (files / "one.txt").write_text("ada\neve\n")
    names = spark.createDataFrame([("ada", "Ada Lovelace"), ("bob", "Bob")], "uid string, name string")
    seen: list[tuple[str, str | None]] = []
    is_complete = threading.Event()

    def keep(frame: DataFrame, batch_id: int) -> None:
        seen.extend((row.uid, row.name) for row in frame.collect())
        if len(seen) >= 5:
            is_complete.set()

    with lines_over_tcp("ada") as port:
        reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
        events = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        texts = spark.readStream.text(str(files))
        uids = events.select(col("value").cast("string").alias("uid"))
        uids = uids.union(lines.toDF("uid")).union(texts.toDF("uid"))
        joined = uids.join(names, "uid", "left").select("uid", names["name"].alias("name"))
        writer = joined.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(processingTime="100 milliseconds").start()
        try:
            deadline = time.monotonic() + WITHIN_S
            while not is_complete.wait(1):
                assert time.monotonic() < deadline, (seen, query.exception())
                if is_too_slow(query.exception()):
                    query = writer.trigger(processingTime="100 milliseconds").start()
        finally:
            query.stop()
    assert sorted(seen, key=str) == [("ada", "Ada Lovelace")] * 3 + [("bob", "Bob"), ("eve", None)]
