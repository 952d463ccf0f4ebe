"""A Redis sink seen from outside: what its marker says, and forgetting it with everything that belongs to it."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from onceflow.errors import OnceflowError
from onceflow.spark import redis_answers, redis_pool, redis_scripts
from onceflow.spark import redis_marker as markers
from onceflow.spark.redis_marker import TAGS_MAX, Marker, same_slot, tagged_key

SCAN_KEYS = 10_000


class OtherSinkBeside(OnceflowError):
    """Another sink's keys are named after this sink's hash, too."""


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


def redis_keys(url: str, hash_key: str, others: Iterable[str]) -> list[str]:
    """The keys that a reset forgets, of those that are there: the hash, all that is named after it, and `others`.

    Raises OtherSinkBeside, RedisFailed, RedisAddressInvalid.
    """
    with _told(url, "to find the sink's keys"):
        client: Any = redis_pool.client(url, hash_key)
        named = [name for name in (hash_key, *others) if client.exists(name)]
        found = list(dict.fromkeys([*named, *sorted(_named_after(client, hash_key))]))
        _refuse_other_sinks(client, hash_key, found)
    return found


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
        yield name.decode("utf-8", "surrogateescape")


def _refuse_other_sinks(client: Any, hash_key: str, found: Iterable[str]) -> None:
    """By its marker: `{shop}:clicks` may be a key of the sink `shop`, or a sink of its own."""
    own, ending = same_slot(hash_key, "onceflow"), ":onceflow"
    for name in found:
        if name != own and name.endswith(ending) and client.type(name) == b"hash":
            other = name.removesuffix(ending)
            raise OtherSinkBeside(
                f"{name} is the marker of another sink, with hash key {other}, whose keys are among those named after "
                f"{hash_key}: nothing was deleted; forget that sink first, or delete by hand what is this one's, with "
                f"its marker {own} in the same UNLINK"
            )


def forget_redis_keys(url: str, keys: Iterable[str]) -> None:
    """Delete them in one command: marker and counts go together, or stay. Raises RedisFailed."""
    names = [key.encode("utf-8", "surrogateescape") for key in keys]
    with _told(url, "to delete the sink's keys"):
        if names:
            redis_pool.client(url, names[0]).unlink(*names)
