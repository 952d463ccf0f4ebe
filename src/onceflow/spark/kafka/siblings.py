"""Markers that other queries left for the same output: a lost checkpoint, or two queries under one sink's name.

A sink's transactional id has its query's id in it, so a query with a new checkpoint finds no marker of its own. Without
this look around it would write everything a second time into a topic that already has it.
"""

from collections.abc import Collection
from dataclasses import replace

from onceflow.client.cluster import PAUSE_MS_MAX, Cluster
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.sink_errors import SinkStopped
from onceflow.spark.kafka.marker import KafkaMarker, Place, newest_values, parse
from onceflow.spark.kafka.reset_command import kafka_reset
from onceflow.spark.kafka.transaction import Settings


def refuse_written_output(
    cluster: Cluster, place: Place, settings: Settings, sink: str, query: str, topics: Collection[str]
) -> None:
    """Raises SinkStopped where another query has written to one of `topics` under the same sink's name.

    For a query that has no marker yet. It reads the marker topic once, after the end of what is open in it.
    """
    for partition in sorted(cluster.require_topic(place.topic).partitions):
        wait_until_readable(cluster, replace(place, partition=partition), settings)
        for found in _markers(cluster, place, partition):
            written = sorted(set(topics) & set(found.partitions))
            if found.query != query and found.sink == sink and written:
                reset = kafka_reset(cluster.bootstrap, sink, None, query=found.query, marker_topic=place.topic)
                raise SinkStopped(
                    f"topic {written[0]} may hold what sink '{sink}' of query {found.query} wrote, up to batch "
                    f"{found.batch}, and this is query {query} at its first batch: if that one's checkpoint was lost, "
                    f"all would be written again; {Remedy.PUT_BACK}, or "
                    f"{Remedy.FORGET_AND_EMPTY.format(reset=reset)}. {Remedy.OTHER_SINK_NAME}"
                )


def wait_until_readable(cluster: Cluster, place: Place, settings: Settings) -> None:
    """Waits until all that the partition of `place` has now can be read. Raises SinkStopped.

    Many sinks write to one marker topic, and what lies behind the open transaction of another is hidden.
    """
    end = place.end(cluster, read_committed=False)
    begun = settings.clock()
    while (hidden_from := place.end(cluster)) < end:
        if (settings.clock() - begun) * 1000 > settings.again_ms:
            raise SinkStopped(
                f"markers in {place.topic}-{place.partition} cannot be read behind offset {hidden_from}, where another "
                f"sink's transaction is open: {Remedy.ABORT_TRANSACTION}"
            )
        settings.sleep(PAUSE_MS_MAX / 1000)


def _markers(cluster: Cluster, place: Place, partition: int) -> list[KafkaMarker]:
    """The newest of each key; what is no marker of this version belongs to somebody else."""
    found = []
    for value in newest_values(cluster, place.topic, partition).values():
        try:
            found.append(parse("a record", place, value)[0])
        except SinkStopped:
            continue
    return found
