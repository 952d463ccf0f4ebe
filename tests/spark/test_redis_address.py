"""A Redis address is shown without what is secret in it."""

import pytest

from onceflow.spark.redis_address import RedisAddressInvalid, require_address, shown


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://127.0.0.1:6379/1", "redis://127.0.0.1:6379/1"),
        ("redis://:secret@host:1/1", "redis://host:1/1"),
        ("rediss://user:se@cret@host:1/1", "rediss://host:1/1"),
        ("redis://host/1?username=me&password=secret&x=1", "redis://host/1?username=…&password=…&x=1"),
        ("redis://host:1", "redis://host:1/0"),
        ("rediss://:secret@host/", "rediss://host/0"),
        ("unix://user:secret@/run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_no_password_is_shown_and_always_the_database(url: str, text: str) -> None:
    assert shown(url) == text


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1/1",
        "h:6379",
        "redis://h/l",
        "redis://h/1?decode_responses=true",
        "redis://h/1?foo=bar",
        "redis://h:99999/1",
        "redis://h:port/1",
        "redis://[::1/1",
    ],
)
def test_what_is_no_redis_address_is_refused(url: str) -> None:
    with pytest.raises(RedisAddressInvalid, match="write it as redis://"):
        require_address(url)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h:1/", "rediss://u:p@h:1/1?ssl_ca_certs=x", "unix:///r.sock?db=1"]
)
def test_what_is_a_redis_address_passes(url: str) -> None:
    require_address(url)
