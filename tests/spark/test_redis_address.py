"""A Redis address is shown without what is secret in it."""

import pytest

from onceflow.spark.redis_address import shown


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://127.0.0.1:6379/1", "redis://127.0.0.1:6379/1"),
        ("redis://:secret@host:1/1", "redis://host:1/1"),
        ("rediss://user:se@cret@host:1/1", "rediss://host:1/1"),
        ("redis://host/1?username=me&password=secret&x=1", "redis://host/1?username=…&password=…&x=1"),
        ("unix://user:secret@/run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_no_password_is_shown(url: str, text: str) -> None:
    assert shown(url) == text
