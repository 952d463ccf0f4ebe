"""Copy TOPIC to TOPIC-copy in two phases, each record once: python examples/spark/two_phase_sink.py HOST:PORT TOPIC"""

import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import onceflow.spark
from onceflow.client import Cluster, TransactionalProducer
from onceflow.client.admin import Admin
from onceflow.client.errors import ProducerFenced
from onceflow.spark.sink import ExactlyOnce
from onceflow.spark.two_phase_sink import TransactionLost, TwoPhaseSink


class TwoPhaseKafkaSink(TwoPhaseSink):
    """Values of rows to a topic: the driver sends them, and any later process can commit what it has flushed.

    Each transaction has a transactional id of its own, so once it is flushed, only its time-out aborts it.
    """

    producer: TransactionalProducer

    def __init__(self, bootstrap: str, topic: str, state: Path) -> None:
        super().__init__("two-phase", state)
        self.bootstrap = bootstrap
        self.topic = topic

    def begin_transaction(self) -> Any:
        self.producer = TransactionalProducer(self.bootstrap, f"{self.topic}-{uuid.uuid4()}")
        self.producer.begin()
        return self.producer.transactional_id

    def invoke(self, transaction: Any, rows: DataFrame) -> None:
        self.is_empty = True
        for row in rows.toLocalIterator():
            self.producer.send(self.topic, row.value.encode())
            self.is_empty = False

    def pre_commit(self, transaction: Any) -> Any:
        self.producer.flush()
        self.producer.close()
        # The broker knows no transaction without records.
        return None if self.is_empty else [transaction, self.producer.producer_id, self.producer.epoch]

    def commit_transaction(self, transaction: Any) -> None:
        if transaction is None:
            return
        try:
            with TransactionalProducer.resume(self.bootstrap, *transaction) as resumed:
                resumed.commit()
        except ProducerFenced as error:
            with Cluster(self.bootstrap) as cluster:
                if Admin(cluster).describe_transaction(transaction[0]).state == "CompleteAbort":
                    raise TransactionLost(str(error)) from error
            raise

    def abort_transaction(self, transaction: Any) -> None:
        # A newer epoch of the id: the broker aborts the transaction and refuses what a frozen driver still sends.
        TransactionalProducer(self.bootstrap, transaction).close()


def main(bootstrap: str, topic: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    rows = stream.options(subscribe=topic, startingOffsets="earliest").load().selectExpr("string(value) AS value")
    name = f"onceflow-example-two-phase-{bootstrap}-{topic}".replace(":", "-")
    checkpoint = Path(tempfile.gettempdir(), name)
    two_phase = TwoPhaseKafkaSink(bootstrap, f"{topic}-copy", checkpoint / "two-phase.db")
    sink = ExactlyOnce(two_phase, checkpoint=str(checkpoint))
    sink.open(spark)
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    sink.close()
    print(f"{topic} is copied to {topic}-copy, each record once; {checkpoint} says how far")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
        sys.exit(2)
    onceflow.spark.install_excepthook()
    main(*sys.argv[1:])
