"""Markers that other queries left for the same output: a lost checkpoint, or two queries under one sink's name.

A sink's transactional id has its query's id in it, so a query with a new checkpoint finds no marker of its own. Without
this look around it would write everything a second time into a topic that already has it.
"""

from collections.abc import Collection

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.spark.kafka_marker import KafkaMarker, Place, parse
from onceflow.spark.reset_commands import kafka_reset
from onceflow.spark.sink_errors import SinkStopped


def refuse_written_output(cluster: Cluster, place: Place, sink: str, query: str, topics: Collection[str]) -> None:
    """Raises SinkStopped where another query has written to one of `topics` under the same sink's name.

    For a query that has no marker yet. It reads the marker topic once, as far as it is committed.
    """
    for partition in sorted(cluster.require_topic(place.topic).partitions):
        for found in _markers(cluster, place, partition):
            written = sorted(set(topics) & set(found.partitions))
            if found.query != query and found.sink == sink and written:
                reset = kafka_reset(cluster.bootstrap, sink, None, query=found.query, marker_topic=place.topic)
                raise SinkStopped(
                    f"topic {written[0]} holds what sink '{sink}' of query {found.query} wrote, up to batch "
                    f"{found.batch}, and this is query {query} at its first batch: if that one's checkpoint was lost, "
                    f"all would be written again; put it back, or forget it with '{reset}' and empty the topic. If "
                    "both are to write there, give this sink another name="
                )


def _markers(cluster: Cluster, place: Place, partition: int) -> list[KafkaMarker]:
    """The newest of each key; what is no marker of this version belongs to somebody else."""
    topic = place.topic
    start, end = (cluster.list_offsets(topic, {partition: at})[partition].offset for at in (EARLIEST, LATEST))
    newest: dict[bytes | None, bytes | None] = {}
    for record in read_records(cluster, topic, partition, start, end):
        newest[record.key] = record.value
    found = []
    for value in newest.values():
        try:
            found += [] if value is None else [parse("a record", place, value)[0]]
        except SinkStopped:
            continue
    return found
