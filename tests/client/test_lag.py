"""The lag of a reader, counted on a real broker."""

from collections.abc import Callable

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.lag import LogEnds, lag_behind


def test_deleted_records_are_not_lag(cluster: Cluster, filled: Callable[..., str]) -> None:
    topic = filled([b"a", b"b", b"c", b"d", b"e"])
    Admin(cluster).delete_records(topic, {0: 3})
    lag = lag_behind(LogEnds(cluster), {topic: {0: 1}}, now_ms=2003)
    assert (lag.messages, lag.seconds) == (2, 1.0)
    assert lag_behind(LogEnds(cluster), {topic: {0: 5}}, now_ms=2003).messages == 0
