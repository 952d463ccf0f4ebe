"""Copy text from topic to topic: python examples/spark/poc_copy.py HOST:PORT [MODE [INPUT OUTPUT]]

The topics are flink_kafka_poc_input and flink_kafka_poc_output, the modes exactly-once, at-least-once and none.
"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import onceflow.spark
from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.serialization import StringDeserializer, StringSerializer, deserialized, serialized

if len(sys.argv) not in {2, 3, 5}:
    print(f"usage: {str(__doc__).splitlines()[0].rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap = sys.argv[1]
mode = sys.argv[2] if len(sys.argv) > 2 else "exactly-once"
source, output = sys.argv[3:5] or ("flink_kafka_poc_input", "flink_kafka_poc_output")
onceflow.spark.install_excepthook()
name = f"onceflow-example-{bootstrap}-{source}-{output}-{mode}".replace(":", "-")
checkpoint = str(Path(tempfile.gettempdir(), name))

spark = SparkSession.builder.getOrCreate()
records = (
    spark.readStream.format("onceflow")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
)
# Any object with `schema` and `deserialize`, or with `serialize`, works here.
texts = deserialized(records, StringDeserializer(), keep=["key"])
rows = serialized(texts, StringSerializer())

exactly_once = mode == "exactly-once"
sink = kafka_sink(bootstrap, topic=output, mode=mode, checkpoint=checkpoint if exactly_once else None)
sink.open(spark)
query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
sink.close()
print(f"{source} is copied to {output}, mode {mode}; the query resumes from {checkpoint}")
