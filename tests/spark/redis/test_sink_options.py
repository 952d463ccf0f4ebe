"""Options that a Redis sink refuses before it connects to a Redis."""

from typing import Any

import pytest

from onceflow.spark.errors import WrongOption
from onceflow.spark.redis_sink import Append, Increment, RedisSink, SetIfNewer, StreamAppend


def new_sink(**written: Any) -> RedisSink:
    return RedisSink("redis://127.0.0.1:1", hash_key="h", checkpoint="/nowhere", **written)


@pytest.mark.parametrize(
    ("twice", "written"),
    [
        ("target 'x'", {"increments": [Increment("x", "h"), Increment("x", "{h}:hourly")]}),
        ("target 'x'", {"increments": [Increment("x", "h")], "appends": [Append("x", "{h}:dead", 3)]}),
        ("target 'x'", {"sets": [SetIfNewer("x", "h", "{h}:v")], "streams": [StreamAppend("x", "{h}:s", 3)]}),
        ("key 'h'", {"increments": [Increment("x", "h")], "appends": [Append("y", "h", 3)]}),
        ("key 'h'", {"increments": [Increment("x", "h", "h")]}),
        ("key 'h'", {"increments": [Increment("x", "h")], "sets": [SetIfNewer("y", "{h}:y", "h")]}),
        ("key '{h}:top'", {"increments": [Increment("x", "h", "{h}:top"), Increment("y", "{h}:y", "{h}:top")]}),
        ("key '{h}:onceflow'", {"increments": [Increment("x", "{h}:onceflow")]}),
        ("key '{h}:history'", {"appends": [Append("x", "{h}:history", 3)]}),
    ],
)
def test_duplicate_target_or_key_is_refused(twice: str, written: dict[str, Any]) -> None:
    with pytest.raises(WrongOption) as refused:
        new_sink(**written)
    assert f"was given {twice} for more than one purpose" in str(refused.value)


def test_distinct_targets_and_keys_are_accepted() -> None:
    new_sink(
        increments=[Increment("x", "h", "{h}:top")],
        appends=[Append("dead", "{h}:dead", 3)],
        sets=[SetIfNewer("last", "{h}:last", "{h}:versions")],
        streams=[StreamAppend("events", "{h}:events", 3)],
    )
