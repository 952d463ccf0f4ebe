"""Copy TOPIC in capitals to TOPIC-copy, each record once: python examples/spark/kafka_to_kafka.py HOST:PORT TOPIC"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import onceflow.spark
from onceflow.spark.kafka_sink import kafka_sink

if len(sys.argv) != 3:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic = sys.argv[1:]
onceflow.spark.install_excepthook()
# A killed or restarted query resumes from here.
checkpoint = str(Path(tempfile.gettempdir(), f"onceflow-example-copy-{bootstrap}-{topic}".replace(":", "-")))

spark = SparkSession.builder.getOrCreate()
rows = (
    spark.readStream.format("onceflow")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("key", "upper(string(value)) AS value", "timestamp")
)
# TOPIC-copy must exist: sinks do not create topics.
sink = kafka_sink(bootstrap, topic=f"{topic}-copy", checkpoint=checkpoint, compression="lz4")
sink.open(spark)
query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
sink.close()
print(f"{topic} is in capitals in {topic}-copy, each record once; {checkpoint} says how far")
