"""Markers that other queries left for the same output: a lost checkpoint, or two queries under one sink's name.

A sink's transactional id has its query's id in it, so a query with a new checkpoint finds no marker of its own. Without
this look around it would write everything a second time into a topic that already has it.
"""

from collections.abc import Collection
from dataclasses import replace

from onceflow.client.cluster import PAUSE_MS_MAX, Cluster
from onceflow.spark.kafka_marker import KafkaMarker, Place, newest_values, parse
from onceflow.spark.kafka_transaction import Settings
from onceflow.spark.reset_commands import kafka_reset
from onceflow.spark.sink_errors import SinkStopped


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
                    f"{_already(found, written[0], query, reset)}; or, if both are to write there, give "
                    "this sink another name="
                )


def _already(found: KafkaMarker, topic: str, query: str, reset: str) -> str:
    """A fresh query's batch 0 is empty, so one that failed in batch 1 has left a marker and no record."""
    if found.since is not None and found.offsets == found.since:
        return (
            f"sink '{found.sink}' of query {found.query} writes to topic {topic}, and has written nothing yet; this is "
            f"query {query} at its first batch: go on with that one's checkpoint, or, if it has ended, forget it with "
            f"'{reset}', after which the topic need not be emptied"
        )
    return (
        f"topic {topic} holds what sink '{found.sink}' of query {found.query} wrote, up to batch {found.batch}, and "
        f"this is query {query} at its first batch: if that one's checkpoint was lost, all would be written again; put "
        f"it back, or forget it with '{reset}' and empty the topic"
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
                "sink's transaction is open: 'onceflow transaction list --state Ongoing' shows it, 'onceflow "
                "transaction abort' ends it"
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
