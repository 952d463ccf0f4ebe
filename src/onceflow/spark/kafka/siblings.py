"""Markers of other queries for the same output: a lost checkpoint, or two queries under one sink's name.

A sink's transactional id contains its query's id, so a query with a new checkpoint has no marker. Without this check it
would write everything again into a topic that already has it.
"""

from collections.abc import Collection
from dataclasses import replace

from onceflow.client.cluster import Cluster
from onceflow.client.routing import PAUSE_MS_MAX
from onceflow.remedies import Remedy
from onceflow.spark.errors import SinkStopped
from onceflow.spark.kafka.marker import KafkaMarker, MarkerLocation, kafka_reset, newest_values, parse
from onceflow.spark.kafka.transaction import Settings


def refuse_written_output(
    cluster: Cluster, location: MarkerLocation, settings: Settings, sink: str, query: str, topics: Collection[str]
) -> None:
    """Raise SinkStopped if another query has written to one of `topics` under the same sink's name.

    Called for a query without marker. It reads the marker topic once, after the open transactions there have ended.
    """
    for partition in sorted(cluster.require_topic(location.topic).partitions):
        wait_until_readable(cluster, replace(location, partition=partition), settings)
        for marker in _markers(cluster, location, partition):
            written = sorted(set(topics) & set(marker.partitions))
            if marker.query != query and marker.sink == sink and written:
                reset = kafka_reset(cluster.bootstrap, sink, None, query=marker.query, marker_topic=location.topic)
                raise SinkStopped(
                    f"topic {written[0]} may hold what sink '{sink}' of query {marker.query} wrote, up to batch "
                    f"{marker.batch}, and this is query {query} at its first batch. If that query's checkpoint was "
                    f"lost, everything would be written again: {Remedy.PUT_BACK}, or "
                    f"{Remedy.FORGET_AND_EMPTY.format(reset=reset)}. {Remedy.OTHER_SINK_NAME}"
                )


def wait_until_readable(cluster: Cluster, location: MarkerLocation, settings: Settings) -> None:
    """Wait until all present records of the location's partition are readable. Raises SinkStopped.

    Many sinks share one marker topic, and an open transaction of one hides later records of the others.
    """
    end = location.end(cluster, read_committed=False)
    started = settings.clock()
    while (hidden_from := location.end(cluster)) < end:
        if (settings.clock() - started) * 1000 > settings.retry_timeout_ms:
            raise SinkStopped(
                f"markers in {location.topic}-{location.partition} cannot be read from offset {hidden_from} on, where "
                f"another sink's transaction is open: {Remedy.ABORT_TRANSACTION}"
            )
        settings.sleep(PAUSE_MS_MAX / 1000)


def _markers(cluster: Cluster, location: MarkerLocation, partition: int) -> list[KafkaMarker]:
    """Return the newest marker of each key; records of other formats are ignored."""
    markers = []
    for value in newest_values(cluster, location.topic, partition).values():
        try:
            markers.append(parse("a record", location, value)[0])
        except SinkStopped:
            continue
    return markers
