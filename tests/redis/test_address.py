"""Redis addresses: validation, parts, and display without secrets."""

import pytest

from onceflow.redis.address import RedisAddressInvalid, require_address, routed_address, shown


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
        ("redis+sentinel://me:se@cret@h:1,g:2/counts", "redis+sentinel://h:1,g:2/counts/0"),
        ("rediss+sentinel://h/counts/3?sentinel_password=x", "rediss+sentinel://h/counts/3?sentinel_password=…"),
        ("redis+cluster://me:secret@h:1,g:2", "redis+cluster://h:1,g:2"),
    ],
)
def test_passwords_are_hidden(url: str, text: str) -> None:
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
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(RedisAddressInvalid, match="write it as redis://"):
        require_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h:1/",
        "rediss://u:p@h:1/1?ssl_ca_certs=x",
        "unix:///r.sock?db=1",
        "redis+sentinel://h/counts",
        "rediss+sentinel://u:p@h:1,g/counts/1?sentinel_username=x&ssl_ca_certs=y",
        "redis+cluster://h:1,g:2,[::1]:3/0",
        "rediss+cluster://h/",
    ],
)
def test_valid_address_passes(url: str) -> None:
    require_address(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://h:1", "'' is not a master's name and database number"),
        ("redis+sentinel://h:1/counts/x", "'/counts/x' is not a master's name"),
        ("redis+sentinel://h:1,/counts", "'' is not HOST:PORT"),
        ("redis+sentinel://h:99999/counts", "'h:99999' is not HOST:PORT"),
        ("redis+cluster://h:1/1", "a cluster has only database 0"),
        ("redis+cluster://h:1?db=1", "a cluster has only database 0"),
        ("redis+cluster://h:1?sentinel_password=x", "option 'sentinel_password' is not one of"),
        ("redis+cluster://h:x", "'h:x' is not HOST:PORT"),
        ("redis+ring://h", "it must start with one of"),
    ],
)
def test_invalid_routed_address_is_refused(url: str, why: str) -> None:
    with pytest.raises(RedisAddressInvalid) as raised:
        require_address(url)
    assert why in str(raised.value)
    assert f"write it as {url.partition(':')[0] if 'ring' not in url else 'redis'}://HOST:PORT" in str(raised.value)


def test_address_of_sentinels() -> None:
    address = routed_address(
        "rediss+sentinel://me:p%40ss@[::1],b:2/my%20counts/3?sentinel_username=you&sentinel_password=x&ssl_ca_certs=ca.pem"
    )
    assert address is not None
    assert (address.kind, address.service, address.tls) == ("sentinel", "my counts", True)
    assert address.servers == (("::1", 26379), ("b", 2))
    assert address.settings == {"username": "me", "password": "p@ss", "db": 3, "ssl_ca_certs": "ca.pem"}
    assert address.lookup_settings == {"username": "you", "password": "x", "ssl_ca_certs": "ca.pem"}


def test_address_of_a_cluster() -> None:
    address = routed_address("redis+cluster://:secret@a,b:2")
    assert address is not None
    assert (address.kind, address.service, address.tls) == ("cluster", "", False)
    assert address.servers == (("a", 6379), ("b", 2))
    assert address.settings == {"password": "secret"}
    assert address.lookup_settings == {"username": None, "password": "secret"}


def test_address_of_one_server() -> None:
    assert routed_address("rediss://a:1/2") is None
