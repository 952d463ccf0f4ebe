"""PyFlink's driver, a `child.Child` in a virtual environment of its own, without imports of onceflow.

`python flink_driver.py CONNECTOR_JAR`. Flink SQL with mini-batches over the same topic, parallelism 2, a checkpoint
every few seconds. There is no connector for Redis, so a Python function sets the changelog's newest sums, a thousand at
a time. These are totals, so setting one twice is correct.
"""

import json
import os
import sys
import time

import redis
from pyflink.common import Configuration, RowKind
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import FlatMapFunction
from pyflink.table import StreamTableEnvironment

PER_PIPELINE = 1000
SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "execution.checkpointing.interval": "5 s",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "500000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}
CLICKS = """
CREATE TEMPORARY TABLE clicks (uid STRING, click_count BIGINT) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
  'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = 'json'
)"""


class SetSums(FlatMapFunction):
    """Function that sets each user's newest sum with HSET."""

    def __init__(self, url, key):
        self._url, self._key = url, key

    def open(self, _context):
        self._client = redis.Redis.from_url(self._url)
        self._sums = {}

    def flat_map(self, row):
        if row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            self._sums[row[0]] = row[1]
            if len(self._sums) >= PER_PIPELINE:
                self._send()
        return ()

    def close(self):
        self._send()
        self._client.close()

    def _send(self):
        if self._sums:
            self._client.hset(self._key, mapping=self._sums)
            self._sums = {}


def drain(jar, work):
    """Return the seconds from the creation of the job to its end."""
    begin = time.perf_counter()
    configuration = Configuration()
    for name, value in {**SETTINGS, "pipeline.jars": f"file://{jar}", "python.executable": sys.executable}.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    tables.execute_sql(CLICKS.format(**work))
    sums = tables.sql_query("SELECT uid, SUM(click_count) AS clicks FROM clicks GROUP BY uid")
    changes = tables.to_changelog_stream(sums)
    # There is no output, but a job needs a sink.
    changes.flat_map(SetSums(work["redis"], f"{{{work['hash_key']}}}:count")).print()
    environment.execute("drain")
    return {"seconds": time.perf_counter() - begin}


def main(jar):
    """Run tasks until standard input ends."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        results.write(json.dumps(drain(jar, json.loads(line))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
