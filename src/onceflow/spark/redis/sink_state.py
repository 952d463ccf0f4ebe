"""A Redis sink seen from outside: what its marker says, and forgetting it with everything that belongs to it."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from onceflow.redis import errors as redis_answers
from onceflow.redis import pool as redis_pool
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.marker import TAGS_MAX, Marker, claims_key, same_slot, tagged_key

SCAN_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class SinkKeys:
    """Keys of one Redis sink, and the keys beside them that it does not own, as a reset finds them."""

    marker: str
    claimed: list[str]
    """Names that are claimed for the marker, whether the keys exist or not."""
    present: dict[str, str | None]
    """Existing keys with the given names or named after the hash key, with the marker that each belongs to."""

    @property
    def own(self) -> list[str]:
        """Keys that a reset deletes."""
        return [key for key, claim in self.present.items() if claim == self.marker]

    @property
    def unclaimed(self) -> list[str]:
        return [key for key, claim in self.present.items() if claim is None]

    @property
    def foreign(self) -> dict[str, list[str]]:
        """Keys of other sinks, by marker."""
        found: dict[str, list[str]] = {}
        for key, claim in self.present.items():
            if claim is not None and claim != self.marker:
                found.setdefault(claim, []).append(key)
        return found


@dataclass(frozen=True, slots=True)
class RedisSinkState:
    """The marker at `key` of the sink with this hash key; None where there is none, and with the keys that it lost."""

    url: str
    hash_key: str
    key: str
    marker: Marker | None
    counts_there: bool

    @property
    def proof(self) -> Marker | None:
        """The marker as the next start of the query takes it."""
        return self.marker.rewound() if self.marker is not None and self.marker.lost else self.marker


def read_redis_sink(url: str, hash_key: str, reset: str) -> RedisSinkState:
    """Raises MarkerUnreadable, RedisFailed, RedisAddressInvalid. `reset` is the command that a sentence may name."""
    key = same_slot(hash_key, "onceflow")
    with _told(url, "to show its marker"):
        client = redis_pool.client(url, key)
        # Once for the names of the written keys, of which there are only ever more; then all at one instant.
        fields, _ = redis_scripts.marker_fields(client, key, [])
        fields, absent = redis_scripts.marker_fields(client, key, [hash_key, *markers.written_keys(fields)])
    marker = markers.parse(key, fields, reset=reset, absent=absent)
    return RedisSinkState(url, hash_key, key, marker, hash_key not in absent)


def marker_query(url: str, hash_key: str) -> str | None:
    """The query that wrote the marker, however damaged the rest of it is; None where nothing says so.

    Raises RedisFailed, RedisAddressInvalid.
    """
    key = same_slot(hash_key, "onceflow")
    with _told(url, "to read its marker"):
        client: Any = redis_pool.client(url, key)
        found = client.hget(key, "query") if client.type(key) == b"hash" else None
    return None if found is None else str(found.decode("utf-8", "replace"))


def tags_there(url: str, hash_key: str) -> list[int]:
    """The tags of which something is there, by their markers and hashes. Raises RedisFailed."""
    with _told(url, "to find the sink's tags"):
        return [tag for tag in range(TAGS_MAX) if _is_there(url, tagged_key(hash_key, tag))]


def _is_there(url: str, hash_key: str) -> bool:
    client: Any = redis_pool.client(url, hash_key)
    return bool(client.exists(hash_key, same_slot(hash_key, "onceflow")))


def redis_keys(url: str, hash_key: str, others: Iterable[str]) -> SinkKeys:
    """Return the keys of a sink: the hash, keys that are named after it, `others`, and what is claimed beside these.

    Raises RedisFailed, RedisAddressInvalid.
    """
    marker, named = same_slot(hash_key, "onceflow"), [hash_key, *others]
    with _told(url, "to find the sink's keys"):
        client: Any = redis_pool.client(url, hash_key)
        places = list(dict.fromkeys(map(claims_key, (marker, *named))))
        claims = {_text(key): _text(claim) for place in places for key, claim in client.hgetall(place).items()}
        claimed = [key for key, claim in claims.items() if claim == marker]
        beside = sorted(set(_named_after(client, hash_key)).difference(places))
        names = dict.fromkeys([*named, *beside, *claimed])
        return SinkKeys(marker, claimed, {key: claims.get(key) for key in names if client.exists(_encoded(key))})


@contextlib.contextmanager
def _told(url: str, doing: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise redis_answers.failed_outside(url, doing, error) from error


def _named_after(client: Any, hash_key: str) -> Iterator[str]:
    beside = same_slot(hash_key, "")
    literally = re.sub(r"([*?\[\]\\])", r"\\\1", beside)
    for name in client.scan_iter(match=f"{literally}*", count=SCAN_KEYS):
        yield _text(name)


def forget_redis_keys(url: str, keys: SinkKeys) -> None:
    """Delete the claimed keys in one script: marker and counts go together, or stay. Raises RedisFailed."""
    with _told(url, "to delete the sink's keys"):
        redis_scripts.forget(redis_pool.client(url, keys.marker), keys.marker, keys.claimed)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
