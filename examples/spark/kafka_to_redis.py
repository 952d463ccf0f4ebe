"""Keep the newest value of each key in Redis: python examples/spark/kafka_to_redis.py HOST:PORT TOPIC REDIS_URL"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import onceflow.spark
from onceflow.spark.redis_sink import RedisSink, SetIfNewer

if len(sys.argv) != 4:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic, redis_url = sys.argv[1:]
onceflow.spark.install_excepthook()
checkpoint = str(Path(tempfile.gettempdir(), f"onceflow-example-latest-{bootstrap}-{topic}".replace(":", "-")))

spark = SparkSession.builder.getOrCreate()
# A key is in one partition, so offsets serve as versions; a record without a value sets nothing. If the topic gets more
# partitions, newer records of a key may have smaller offsets in another one, and set nothing. For such topics, use
# a version number from the events.
rows = (
    spark.readStream.format("onceflow")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
    .where("key IS NOT NULL AND value IS NOT NULL")
    .selectExpr("'latest' AS target", "key AS field", "offset AS amount", "value")
)
sink = RedisSink(
    redis_url,
    hash_key=topic,
    sets=[SetIfNewer("latest", topic, f"{{{topic}}}:versions")],
    checkpoint=checkpoint,
    plan="latest value",
    plan_version=1,
)
sink.open(spark)
writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
sink.close()
print(f"{topic} is in Redis, the newest value of each key; {checkpoint} says how far")
