"""Translated offsets of consumer groups."""

import re
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST
from onceflow.client.errors import RequestRefused
from onceflow.mirror.groups import RUNS_MAX, GroupOffsets, follow_groups
from onceflow.mirror.offset_log import OffsetLog
from onceflow.mirror.positions import Names
from tests.mirror.conftest import Clusters, records


@pytest.fixture
def mirrored(clusters: Clusters) -> Clusters:
    """A topic with gaps on both sides: aborted transactions, and one mirrored transaction for each of the source's."""
    clusters.source.create_topic(clusters.topic, 1)
    for number in range(2):
        clusters.write(f"{number}a", f"{number}b")
        clusters.write("aborted", commit=False)
        clusters.run_once()
    return clusters


def translator(clusters: Clusters, runs_max: int = RUNS_MAX) -> GroupOffsets:
    pattern = re.compile(rf"{clusters.topic}.*")
    return GroupOffsets(clusters.source, clusters.target, Names(clusters.topic), pattern, runs_max=runs_max)


def offset_in_target(clusters: Clusters, group: str) -> int | None:
    return clusters.target.committed_offsets(group, clusters.topic).get(0)


@pytest.mark.parametrize("runs_max", [RUNS_MAX, 1], ids=["in memory", "scanned"])
def test_every_offset_is_exact(mirrored: Clusters, runs_max: int) -> None:
    """A group reads the same records after its offset in both clusters."""
    end = mirrored.source.list_offsets(mirrored.topic, {0: LATEST})[0].offset
    for offset in range(end + 1):
        mirrored.source.commit_offsets(f"{mirrored.topic}-{offset}", mirrored.topic, {0: offset})
    assert translator(mirrored, runs_max).round().committed == end + 1
    for offset in range(end + 1):
        translated = offset_in_target(mirrored, f"{mirrored.topic}-{offset}")
        assert translated is not None
        rest = [record.value for record in records(mirrored.source, mirrored.topic) if record.offset >= offset]
        assert [r.value for r in records(mirrored.target, mirrored.topic) if r.offset >= translated] == rest


def test_offsets_never_go_back(mirrored: Clusters) -> None:
    group = mirrored.topic
    mirrored.source.commit_offsets(group, mirrored.topic, {0: 6})
    offsets = translator(mirrored)
    assert offsets.round().committed == 1
    first = offset_in_target(mirrored, group)
    mirrored.source.commit_offsets(group, mirrored.topic, {0: 1})
    assert offsets.round().committed == 0
    assert offset_in_target(mirrored, group) == first
    mirrored.target.commit_offsets(group, mirrored.topic, {0: 99})
    mirrored.source.commit_offsets(group, mirrored.topic, {0: 9})
    assert offsets.round().committed == 0
    assert offset_in_target(mirrored, group) == 99


def test_offsets_beyond_the_mirror_wait(mirrored: Clusters) -> None:
    """Records that are not mirrored yet: the group gets the end now, and its place later."""
    group = mirrored.topic
    mirrored.write("later", "latest")
    end = mirrored.source.list_offsets(mirrored.topic, {0: LATEST})[0].offset
    mirrored.source.commit_offsets(group, mirrored.topic, {0: end - 2})
    offsets = translator(mirrored)
    offsets.round()
    before = offset_in_target(mirrored, group)
    assert [r for r in records(mirrored.target, mirrored.topic) if r.offset >= (before or 0)] == []
    mirrored.run_once()
    offsets.round()
    after = offset_in_target(mirrored, group) or 0
    assert [r.value for r in records(mirrored.target, mirrored.topic) if r.offset >= after] == [b"latest"]


def test_groups_with_members_keep_theirs(mirrored: Clusters) -> None:
    group = mirrored.topic
    settings: dict[str, Any] = {"bootstrap.servers": mirrored.target.bootstrap, "group.id": group}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([mirrored.topic])
    message = consumer.poll(30)
    assert message is not None and message.error() is None
    mirrored.source.commit_offsets(group, mirrored.topic, {0: 6})
    offsets = translator(mirrored)
    result = offsets.round()
    assert (result.committed, result.active) == (0, {group})
    consumer.commit(offsets=[TopicPartition(mirrored.topic, 0, 1)], asynchronous=False)
    consumer.close()
    assert offsets.round().committed == 1


def test_a_recreated_topic_has_a_new_map(mirrored: Clusters) -> None:
    group = mirrored.topic
    offsets = translator(mirrored)
    mirrored.source.commit_offsets(group, mirrored.topic, {0: 6})
    offsets.round()
    mirrored.target.delete_topic(mirrored.topic)
    mirrored.run_once(accepts_loss=True)
    offsets.round()
    translated = offset_in_target(mirrored, group) or 0
    rest = [record.value for record in records(mirrored.source, mirrored.topic) if record.offset >= 6]
    assert [r.value for r in records(mirrored.target, mirrored.topic) if r.offset >= translated] == rest


def test_a_refused_commit_is_an_error(mirrored: Clusters) -> None:
    mirrored.source.commit_offsets(mirrored.topic, mirrored.topic, {0: 6})
    mirrored.target_broker.faults.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
    ended = threading.Event()
    ended.set()
    with pytest.raises(RequestRefused, match="GROUP_AUTHORIZATION_FAILED"):
        follow_groups(translator(mirrored), ended, 1)
    follow_groups(translator(mirrored), ended, 1)
    assert offset_in_target(mirrored, mirrored.topic) is not None


def test_deleted_topics_do_not_end_rounds(mirrored: Clusters) -> None:
    """The target's topic is deleted after the round has read which topics exist."""
    mirrored.source.commit_offsets(mirrored.topic, mirrored.topic, {0: 6})
    mirrored.target_broker.faults.fail("OffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION")
    groups = translator(mirrored)
    assert groups.round().committed == 0
    assert groups.round().committed == 1


def test_the_map_is_trimmed_with_the_source(mirrored: Clusters) -> None:
    log = OffsetLog(mirrored.target, Names(mirrored.topic))
    start, end = log.ends()
    assert log.trim(mirrored.source) == start
    Admin(mirrored.source).delete_records(mirrored.topic, {0: 6})
    assert log.trim(mirrored.source) > start
    mirrored.source.commit_offsets(mirrored.topic, mirrored.topic, {0: 7})
    assert translator(mirrored).round().committed == 1
    mirrored.run_once(trim_s=0.0)
    Admin(mirrored.source).delete_records(mirrored.topic, {0: -1})
    assert log.trim(mirrored.source) == end
