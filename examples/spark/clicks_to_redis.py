"""Count clicks by user, each event once: python examples/spark/clicks_to_redis.py HOST:PORT TOPIC REDIS_URL"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import onceflow.spark
from onceflow.spark.read_again import read_again
from onceflow.spark.redis_sink import Increment, RedisSink

if len(sys.argv) != 4:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic, redis_url = sys.argv[1:]
onceflow.spark.install_excepthook()
checkpoint = str(Path(tempfile.gettempdir(), f"onceflow-example-clicks-{bootstrap}-{topic}".replace(":", "-")))
# One hash per topic, and not that of `onceflow run`, which counts more and validates events: this example also adds up
# negative counts.
clicks = f"example::{topic}::click"
# The source decodes and sums JSON: it returns one row per user and read task.
source = {
    "kafka.bootstrap.servers": bootstrap,
    "decode": "uid STRING NOT NULL, click_count BIGINT NOT NULL",
    "aggregate": "sum(click_count) AS amount",
    "groupBy": "uid",
}


def sums(events: DataFrame) -> DataFrame:
    """Return rows for the sink: add `amount` to the field `uid` of the target 'clicks' below."""
    return events.where("rejected IS NULL").selectExpr("'clicks' AS target", "binary(uid) AS field", "amount")


spark = SparkSession.builder.getOrCreate()
events = spark.readStream.format("onceflow").options(**source, subscribe=topic, startingOffsets="earliest").load()
sink = RedisSink(
    redis_url,
    hash_key=clicks,
    increments=[Increment("clicks", clicks)],
    checkpoint=checkpoint,
    plan="clicks by uid",
    plan_version=1,
    # If a crash of Redis loses batches, they are counted again from the log.
    rebuild=lambda missing: sums(read_again(spark, source, missing)),
)
sink.open(spark)
writer = sums(events).writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
sink.close()
print(f"the clicks of {topic} are in {clicks}, each event once; {checkpoint} says how far")
