"""Settings of a Redis that loads its data: INFO reports no append-only file until the end, as seen on Valkey 9.1.2."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from onceflow.spark.redis import settings
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.target import RedisTarget
from tests.conftest import RedisProcess


@pytest.fixture
def client(redis_server: RedisProcess) -> Iterator[redis.Redis]:
    """A client whose first INFO about persistence is that of a server that loads its data."""
    loading = [{"loading": 1, "aof_enabled": 0}]

    with redis.Redis.from_url(redis_server.url) as client:
        parse = client.response_callbacks["INFO"]

        def parsed(response: Any) -> Any:
            info = parse(response)
            return info | loading.pop() if "aof_enabled" in info and loading else info

        client.set_response_callback("INFO", parsed)
        yield client
        assert not loading


def test_settings_are_read_after_loading(client: redis.Redis) -> None:
    assert settings.read(client)["appendonly"] == "yes"


def test_start_waits_until_redis_has_loaded(
    client: redis.Redis,
    redis_server: RedisProcess,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without, the query would not wait for Redis's disk until its next start."""
    target = RedisTarget(redis_server.url, Keys("marker", "history", (), ()), name="counts")
    monkeypatch.setattr(target, "_client", lambda: client)
    with caplog.at_level(logging.WARNING):
        target.open(None, None)
    assert not [message for message in caplog.messages if "cannot report when a write is on disk" in message]
