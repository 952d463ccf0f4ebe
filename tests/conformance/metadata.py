"""Metadata: names, ids, nulls and automatic topic creation."""

import uuid
from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.conformance.side import Side

NO_ID = uuid.UUID(int=5)


def ask_metadata(side: Side, *topics: tuple[str | None, uuid.UUID | None], version: int = 12, **fields: Any) -> None:
    asked = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    values = {
        "topics": asked,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
        **fields,
    }
    side.ask(apis.METADATA, version, **values)


def named(*names: str, versions: tuple[int, ...] = (1, 4, 8, 12)) -> Callable[[Side], None]:
    """Request topics by name; before version 4 this creates missing ones."""

    def case(side: Side) -> None:
        side.create_topic(2)
        for version in versions:
            ask_metadata(side, *[(name.replace("own", side.topic), None) for name in names], version=version)

    return case


def by_id(side: Side) -> None:
    topic = side.create_topic()
    asked = [{"name": topic, "topic_id": None}]
    fields: dict[str, Any] = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
    topic_id = side.ask_quietly(apis.METADATA, 12, topics=asked, **fields).topics[0].topic_id
    for topics in (
        [(None, topic_id)],
        [(topic, topic_id)],
        [(topic, NO_ID)],
        [(None, NO_ID)],
        [(None, topic_id), (None, topic_id)],
        [(None, topic_id), (topic, None)],
    ):
        ask_metadata(side, *topics)
        ask_metadata(side, *topics, include_topic_authorized_operations=True)


def of_nothing_named(side: Side) -> None:
    ask_metadata(side, (None, None))


def made_by_asking(side: Side) -> None:
    for name in ("a/b", "", ".", "__cluster_metadata", "x" * 250):
        ask_metadata(side, (name, None), allow_auto_topic_creation=True)
    ask_metadata(side, (side.topic, None), allow_auto_topic_creation=True)
    side.until(
        lambda response: response.topics[0].error_code == 0,
        apis.METADATA,
        12,
        topics=[{"name": side.topic, "topic_id": None}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    ask_metadata(side, (side.topic, None))


def nothing(side: Side) -> None:
    for version in (1, 12):
        ask_metadata(side, version=version)


CASES: dict[str, Callable[[Side], None]] = {
    "metadata of topics": named("own"),
    "metadata of a topic twice": named("own", "own"),
    "metadata of unknown topics": named("no-such-topic-to-know", "own", "no-such-topic-to-know", versions=(4, 8, 12)),
    "metadata of impossible topics": named("a/b", ".", "", "own", "x" * 250),
    "metadata of the cluster's topic": named("__cluster_metadata"),
    "metadata by id": by_id,
    "metadata of nothing": nothing,
    "metadata of a topic without name and id": of_nothing_named,
    "metadata that makes topics": made_by_asking,
}
