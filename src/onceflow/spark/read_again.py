"""Exactly the records of given offset ranges, for a sink that must count them again.

    RedisSink(…, rebuild=lambda missing: counted(read_again(spark, options, missing)))

The read fails if the log no longer holds the records as they were: retention deleted offsets, the topic was
recreated, or it is compacted and may have fewer records now.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.errors import OnceflowError
from onceflow.spark.offsets import Offsets
from onceflow.spark.reader.options import FAIL_ON_DATA_LOSS, STREAM_ONLY, SourceOptions, read_options
from onceflow.spark.reader.position_options import (
    ENDING,
    ENDING_OFFSETS,
    GROUP_ID,
    NONE_COMMITTED,
    STARTING,
    STARTING_OFFSETS,
    STARTING_STRATEGY,
)
from onceflow.spark.reader.subscription import ASSIGN, OPTIONS
from onceflow.spark.redis.repair import MissingRanges

CLEANUP_POLICY = "cleanup.policy"
_REPLACED = {
    name.lower()
    for name in (
        *OPTIONS,
        *STARTING,
        *ENDING,
        STARTING_STRATEGY,
        NONE_COMMITTED,
        GROUP_ID,
        FAIL_ON_DATA_LOSS,
        *STREAM_ONLY,
    )
}
"""Options that select what a stream reads; here the ranges do."""


class InputCompacted(OnceflowError):
    """Topic whose records may have been compacted since they were counted."""


def read_again(spark: SparkSession, options: Mapping[str, str], missing: MissingRanges) -> DataFrame:
    """Return the records of these ranges with the stream's columns; `options` are the stream's.

    Raises InputCompacted and the client's errors at once. An action on the result fails if offsets were deleted
    (DataLost, WrongOption) or the topic was recreated.
    """
    wanted = _options(options, missing)
    _refuse_compacted(read_options(wanted, "batch"), {part.topic for part in missing.ranges})
    return spark.read.format("onceflow").options(**wanted).load()


def read_ranges(
    spark: SparkSession, options: Mapping[str, str], ranges: MissingRanges, *, fail_on_data_loss: bool
) -> DataFrame:
    """Return the records of the ranges of a batch that is being written, each range in one task."""
    wanted = _options(options, ranges) | {FAIL_ON_DATA_LOSS: str(fail_on_data_loss).lower()}
    return spark.read.format("onceflow").options(**wanted).load()


def _options(options: Mapping[str, str], missing: MissingRanges) -> dict[str, str]:
    kept = {name: value for name, value in options.items() if name.lower() not in _REPLACED}
    assigned: dict[str, list[int]] = {}
    begins: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for part in missing.ranges:
        assigned.setdefault(part.topic, []).append(part.partition)
        begins.setdefault(part.topic, {})[part.partition] = part.begin
        ends.setdefault(part.topic, {})[part.partition] = part.end

    def text(by_topic: Any) -> str:
        return json.dumps(Offsets(by_topic, missing.topic_ids).as_json())

    return {
        **kept,
        ASSIGN: json.dumps(assigned),
        STARTING_OFFSETS: text(begins),
        ENDING_OFFSETS: text(ends),
        FAIL_ON_DATA_LOSS: "true",
    }


def _refuse_compacted(options: SourceOptions, topics: set[str]) -> None:
    # Not a shared connection: those belong to one thread, and a sink may check from any.
    with Cluster(options.bootstrap, client_id="onceflow-spark", security=options.security) as cluster:
        for topic in sorted(topics):
            policy = Admin(cluster).describe_topic_configs(topic).get(CLEANUP_POLICY)
            if policy is None or "compact" in (policy.value or ""):
                value = "unknown" if policy is None else repr(policy.value)
                raise InputCompacted(
                    f"topic {topic} has {CLEANUP_POLICY} {value}: counted records may have been compacted, so the "
                    "missing ones cannot be read again"
                )
