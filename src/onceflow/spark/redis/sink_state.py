"""Redis sinks as commands see them: the marker, all keys of a sink, and their deletion."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.marker import TAGS_MAX, Marker, claims_key, hash_tag, same_slot, tagged_key
from onceflow.spark.redis.targets import Index


@dataclass(frozen=True, slots=True)
class SinkKeys:
    """Keys of one Redis sink for a reset, and keys beside them that it does not own."""

    marker: str
    claimed: list[str]
    """Names claimed for the marker, whether the keys exist or not."""
    present: dict[str, str | None]
    """Existing keys with the given names or named after the hash key, each with the marker that it belongs to."""
    buckets: dict[str, list[bytes]]
    """Existing buckets of each index that is claimed for the marker."""

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
        keys: dict[str, list[str]] = {}
        for key, claim in self.present.items():
            if claim is not None and claim != self.marker:
                keys.setdefault(claim, []).append(key)
        return keys


@dataclass(frozen=True, slots=True)
class RedisSinkState:
    """State of the sink with this hash key; `marker` is None if there is none at `key`, and has the lost keys."""

    url: str
    hash_key: str
    key: str
    marker: Marker | None
    has_counts: bool
    buckets: dict[str, int]
    """Number of members of each index."""

    @property
    def proof(self) -> Marker | None:
        """The marker as the next start of the query reads it."""
        return self.marker.rewound() if self.marker is not None and self.marker.lost else self.marker


def read_redis_sink(url: str, hash_key: str, reset: str) -> RedisSinkState:
    """Return a sink's state; `reset` is the command for messages.

    Raises MarkerUnreadable, RedisFailed, RedisAddressInvalid.
    """
    key = same_slot(hash_key, "onceflow")
    with _translate_redis_errors(url, "to show its marker"):
        client = redis_pool.client(url, key)
        # First read the names of the written keys, which are never removed; then everything at one instant.
        fields, _ = redis_scripts.marker_fields(client, key, [])
        fields, absent = redis_scripts.marker_fields(client, key, [hash_key, *markers.written_keys(fields)])
        buckets = {index.key: int(client.zcard(index.key)) for index in markers.indexes(fields)}
    marker = markers.parse(key, fields, reset=reset, absent=absent)
    return RedisSinkState(url, hash_key, key, marker, hash_key not in absent, buckets)


def marker_query(url: str, hash_key: str) -> str | None:
    """Return the query of the marker, even if the rest of it is damaged; None if unknown.

    Raises RedisFailed, RedisAddressInvalid.
    """
    key = same_slot(hash_key, "onceflow")
    with _translate_redis_errors(url, "to read its marker"):
        client: Any = redis_pool.client(url, key)
        query = client.hget(key, "query") if client.type(key) == b"hash" else None
    return None if query is None else str(query.decode("utf-8", "replace"))


def existing_tags(url: str, hash_key: str) -> list[int]:
    """Return the tags with a marker or a hash. Raises RedisFailed."""
    with _translate_redis_errors(url, "to find the sink's tags"):
        return [tag for tag in range(TAGS_MAX) if _exists(url, tagged_key(hash_key, tag))]


def _exists(url: str, hash_key: str) -> bool:
    client: Any = redis_pool.client(url, hash_key)
    return bool(client.exists(hash_key, same_slot(hash_key, "onceflow")))


def redis_keys(url: str, hash_key: str, others: Iterable[str]) -> SinkKeys:
    """Return the keys of a sink: the hash, keys named after it, `others`, and the claimed keys beside these.

    Raises RedisFailed, RedisAddressInvalid.
    """
    marker, named = same_slot(hash_key, "onceflow"), [hash_key, *others]
    with _translate_redis_errors(url, "to find the sink's keys"):
        client: Any = redis_pool.client(url, hash_key)
        claims_hashes = list(dict.fromkeys(map(claims_key, (marker, *named))))
        claims = redis_scripts.claimed(client, claims_hashes)
        claimed = [key for key, claim in claims.items() if claim == marker]
        indexes = [index for index in _indexes(client, marker) if claims.get(index.key) == marker]
        foreign = [other for other in {*claims.values()} - {marker} if hash_tag(other) == hash_tag(marker)]
        foreign_indexes = [index for other in foreign for index in _indexes(client, other)]
        buckets = {
            index.key: [key for step in redis_scripts.buckets_in(client, [index], besides=claims) for key in step]
            for index in indexes
        }
        known = {_text(key) for keys in buckets.values() for key in keys}
        beside = sorted(set(_named_after(client, hash_key)).difference(claims_hashes, known))
        # Buckets of a sink whose keys are named after this hash key, such as a rebuild's.
        beside = [name for name in beside if not any(index.may_name(_encoded(name)) for index in foreign_indexes)]
        names = dict.fromkeys([*named, *beside, *claimed])
        present = {key: claims.get(key) for key in names if client.exists(_encoded(key))}
        return SinkKeys(marker, claimed, present, buckets)


def _indexes(client: Any, marker: str) -> list[Index]:
    """Return the indexes that the marker lists; none if there is no marker."""
    if client.type(marker) != b"hash":
        return []
    return markers.indexes({_text(name): _text(value) for name, value in client.hgetall(marker).items()})


@contextlib.contextmanager
def _translate_redis_errors(url: str, doing: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise redis_errors.failed_outside(url, doing, error) from error


def _named_after(client: Any, hash_key: str) -> Iterator[str]:
    pattern = redis_scripts.glob_escaped(same_slot(hash_key, ""))
    for name in client.scan_iter(match=f"{pattern}*", count=redis_scripts.SCAN_KEYS):
        yield _text(name)


def forget_redis_keys(url: str, keys: SinkKeys) -> None:
    """Delete the claimed keys in one script, so marker and counts are deleted together; before, their buckets.

    Raises RedisFailed.
    """
    buckets = [key for names in keys.buckets.values() for key in names]
    with _translate_redis_errors(url, "to delete the sink's keys"):
        redis_scripts.forget(redis_pool.client(url, keys.marker), keys.marker, keys.claimed, buckets)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
