"""Recorded results of verify: what is kept, whose counts it is about, and a user that may not write."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.clicks.analytics import Analytics
from onceflow.clicks.last_verify import LastVerify
from onceflow.redis import pool as redis_pool
from tests.clicks.test_verify import Place, place, written

__all__ = ["place", "written"]


def recorded(place: Place) -> LastVerify | None:
    with Analytics(place.url, place.hash_key) as analytics:
        return analytics.last_verify()


def test_results_are_recorded(place: Place) -> None:
    assert place.command().return_value == 0
    assert recorded(place) is None, "without the option nothing is written"
    document = json.loads(place.command("--record", "--json").stdout)
    equal = recorded(place)
    assert equal is not None and equal.is_equal
    assert (equal.batch, equal.events) == (document["batch"], document["events"])
    with place.redis() as client:
        client.hincrby(place.keys.count, "ada", 1)
        client.hincrby(place.keys.os, "iOS", 1)
    assert place.command("--record").return_value == 1
    different = recorded(place)
    assert different is not None
    assert (different.differences, different.is_equal) == (2, False)
    assert different.finished_ms >= equal.finished_ms


def test_other_counts_have_no_result(place: Place) -> None:
    """Another query may count with the same hash key after a reset."""
    assert place.command("--record").return_value == 0
    place.count(query="another")
    assert recorded(place) is None


def test_reset_deletes_a_result(place: Place) -> None:
    assert place.command("--record").return_value == 0
    reset = ["sink", "reset", "redis", "--redis", place.url, "--hash-key", place.hash_key, "--execute", "--json"]
    document = json.loads(CliRunner().invoke(onceflow, reset).stdout)
    assert any(place.keys.verified in deleted for deleted in document["deleted"])
    assert not any(place.keys.verified in kept for kept in document["kept"])
    with place.redis() as client:
        assert not client.exists(place.keys.verified)


def test_inconclusive_results_are_not_recorded(place: Place) -> None:
    with place.redis() as client:
        client.hdel(place.keys.marker, "plan")
        client.delete(place.keys.verified)
    assert place.command("--record").return_value == 2
    with place.redis() as client:
        assert not client.exists(place.keys.verified)


@pytest.fixture
def reader(place: Place) -> Iterator[Place]:
    """Let the place be reached by a user that may only read."""
    with place.redis() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "-@all", "+@read", "+@connection")
        client.execute_command("ACL", "SETUSER", "reader", "+multi", "+exec")
        place.url = place.url.replace("redis://", "redis://reader:secret@")
        yield place
        client.execute_command("ACL", "DELUSER", "reader")
    redis_pool.close()


@pytest.mark.parametrize(("added", "code"), [(0, 2), (1, 1)], ids=["equal", "different"])
def test_a_user_that_may_not_write(reader: Place, added: int, code: int) -> None:
    """The result is printed, and the command fails."""
    with redis.Redis.from_url(reader.url.replace("reader:secret@", "")) as client:
        client.hincrby(reader.keys.count, "ada", added)
        client.delete(reader.keys.verified)
    done: Any = reader.command("--record")
    assert done.return_value == code
    assert "differences" in done.stdout
    assert f"failed to write {reader.keys.verified}" in done.stderr
    assert "secret" not in done.stderr
