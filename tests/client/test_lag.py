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


def test_records_deleted_meanwhile_have_no_age(cluster: Cluster, filled: Callable[..., str]) -> None:
    """The first unread record is deleted between the request of the log's ends and the fetch."""
    topic = filled([b"a", b"b", b"c", b"d", b"e"])
    ends = LogEnds(cluster)
    ends.of(topic, [0])
    Admin(cluster).delete_records(topic, {0: 3})
    assert lag_behind(ends, {topic: {0: 1}}, now_ms=2003).seconds == 1.0
