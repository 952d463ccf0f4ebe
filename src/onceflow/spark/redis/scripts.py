"""Calls of the sink's Lua scripts (`lua/*.lua`); their refusals become exceptions.

Any call can be repeated: a script that has already run finds that by the marker and changes nothing.
"""

import functools
import hashlib
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple, cast

import redis

from onceflow.redis import errors as redis_errors
from onceflow.remedies import Remedy
from onceflow.spark.errors import AttemptEnded, IncompatibleData, MarkerRefused, SinkStopped
from onceflow.spark.redis import buckets as redis_buckets
from onceflow.spark.redis.buckets import Argument, Row
from onceflow.spark.redis.marker import RESET, claims_key
from onceflow.spark.redis.targets import (
    Append,
    BucketDistinct,
    BucketTarget,
    Ids,
    Increment,
    Index,
    Intervals,
    SetIfNewer,
    StreamAppend,
    Target,
    indexes_of,
)

PARTS = ("fence", "buckets", "intervals", "indexes", "ids")
"""Parts of every script, before its own."""
BUCKETS_PER_STEP = 1_000
"""Buckets that one script deletes for a reset or a repair."""
SCAN_KEYS = 10_000
LOOK_MEMBERS = 1_000
"""Members of an index that one script checks, roughly."""


class MarkerMoved(AttemptEnded):
    """The marker is not where this start left it: Redis lost writes meanwhile. Reading it again decides."""


class BucketLost(MarkerMoved):
    """A bucket that its index names does not exist; `confirm_loss` makes sure."""

    def __init__(self, message: str, index_key: str, member: bytes) -> None:
        super().__init__(message)
        self.index_key = index_key
        self.member = member


class OwnerLost(SinkStopped):
    """Another start of the query has taken over; this one must stop."""


class Forbidden(SinkStopped):
    """The user of the Redis address may not call a command of the scripts."""


@dataclass(frozen=True)
class Keys:
    """All keys of one sink, in the order of every script's KEYS."""

    marker: str
    history: str
    increments: tuple[Increment, ...]
    appends: tuple[Append, ...]
    sets: tuple[SetIfNewer, ...] = ()
    streams: tuple[StreamAppend, ...] = ()
    buckets: tuple[BucketTarget, ...] = ()
    ids: Ids | None = None
    reset: str = RESET
    """Command that deletes all of them, for messages."""

    # Without slots, for the cache.
    @functools.cached_property
    def data(self) -> list[str]:
        """Data keys, each once."""
        return list(dict.fromkeys(self.named))

    @property
    def named(self) -> list[str]:
        """Data keys, as often as they were given."""
        keys = [increment.key for increment in self.increments]
        keys += [increment.ranking_key for increment in self.increments if increment.ranking_key is not None]
        keys += [append.key for append in self.appends] + [stream.key for stream in self.streams]
        keys += [key for setting in self.sets for key in (setting.key, setting.versions_key)]
        keys += [index.key for index in self.indexes]
        return keys if self.ids is None else [*keys, self.ids.duplicates_key]

    @functools.cached_property
    def indexes(self) -> tuple[Index, ...]:
        """Indexes of the bucket targets, and of the ids."""
        ids = () if self.ids is None else (self.ids.index,)
        return (*indexes_of(self.buckets), *ids)

    @property
    def targets(self) -> list[str]:
        """Allowed targets of rows."""
        groups: tuple[Sequence[Target], ...] = (self.increments, self.appends, self.sets, self.streams, self.buckets)
        return [target.target for group in groups for target in group]

    @property
    def entry_targets(self) -> list[str]:
        """Targets whose rows are entries of a list or a stream."""
        return [append.target for append in self.appends] + [stream.target for stream in self.streams]

    @functools.cached_property
    def summed_targets(self) -> list[str]:
        """Targets whose amounts are summed by field."""
        summed = [target for target in self.buckets if not isinstance(target, BucketDistinct | Intervals)]
        return [target.target for target in (*self.increments, *summed)]

    @functools.cached_property
    def distinct_targets(self) -> list[str]:
        """Targets whose values are members of sets."""
        return [target.target for target in self.buckets if isinstance(target, BucketDistinct)]

    @functools.cached_property
    def interval_targets(self) -> list[str]:
        return [target.target for target in self.buckets if isinstance(target, Intervals)]

    @property
    def valued_targets(self) -> list[str]:
        """Targets whose rows need a value."""
        return [setting.target for setting in self.sets] + self.distinct_targets + self.interval_targets

    @functools.cached_property
    def own(self) -> list[str]:
        """Keys that are claimed for the marker."""
        return [self.marker, self.history, *self.data]

    @functools.cached_property
    def all(self) -> list[str]:
        """All keys that the scripts use, each once."""
        return [*self.own, *self.claims]

    @property
    def claims(self) -> list[str]:
        """Claims hashes, each once."""
        return list(dict.fromkeys(map(claims_key, self.own)))

    @functools.cached_property
    def for_scripts(self) -> list[str]:
        """KEYS of every script."""
        return with_claims(self.own)

    def number(self, key: str) -> int:
        """Return the index of `key` in Lua's KEYS, from 1."""
        return self.own.index(key) + 1


def with_claims(keys: Sequence[str]) -> list[str]:
    """Return KEYS of a script: `keys`, then the claims hash of each."""
    return [*keys, *map(claims_key, keys)]


Counts = Mapping[tuple[str, bytes], int]
"""(target, field) → amount: each pair once."""

Entries = Mapping[str, Sequence[bytes]]
"""Target of an Append or a StreamAppend → its new entries, oldest first."""


def field_arguments(fields: Mapping[str, str]) -> list[Argument]:
    """Return the arguments for fields of the marker."""
    return [len(fields), *(text for pair in fields.items() for text in pair)]


def acquire_arguments(
    keys: Keys, query: str, fields: Mapping[str, str], *, may_create: bool, now_ms: int
) -> list[Argument]:
    """Return the arguments of `acquire`; `fields` are the marker's first ones."""
    return [query, int(may_create), now_ms, *field_arguments(fields), len(keys.streams), *index_arguments(keys)]


def index_arguments(keys: Keys) -> list[Argument]:
    """Return the arguments for the indexes of the bucket targets."""
    numbers = {key: number for number, key in enumerate(keys.own, 1)}
    return redis_buckets.index_arguments(keys.indexes, numbers)


class Rows(NamedTuple):
    """Rows as a script takes them."""

    arguments: list[Argument]
    touched: list[bytes]
    """Keys of buckets that the script changes, the further KEYS of the script."""


def row_arguments(keys: Keys, rows: Sequence[Row]) -> Rows:
    """Return the arguments for rankings, counts, sets and buckets. Raises IncompatibleData for a row of no bucket.

    The rows of each target and field are one row, except those of BucketDistinct and Intervals.
    """
    rankings = [
        (keys.number(increment.key), keys.number(increment.ranking_key))
        for increment in keys.increments
        if increment.ranking_key is not None
    ]
    hashes = {increment.target: keys.number(increment.key) for increment in keys.increments}
    pairs = {setting.target: (keys.number(setting.key), keys.number(setting.versions_key)) for setting in keys.sets}
    counts: list[Argument] = []
    sets: list[Argument] = []
    bucket_rows = []
    for target, field, amount, value in rows:
        if target in hashes:
            counts += (hashes[target], field, amount)
        elif target in pairs:
            sets += (*pairs[target], field, amount, value or b"")
        else:
            bucket_rows.append((target, field, amount, value))
    numbers = [number for pair in rankings for number in pair]
    buckets, touched = redis_buckets.row_arguments(keys.indexes, bucket_rows)
    counted = [len(rankings), *numbers, len(counts) // 3, *counts, len(sets) // 5, *sets]
    return Rows([*counted, *index_arguments(keys), *buckets], touched)


def list_arguments(keys: Keys, history: Append, entry: str, entries: Entries) -> list[Argument]:
    """Return the arguments for lists and streams: one entry of the history, and the new entries of each target."""
    lists: list[tuple[Append | StreamAppend, Sequence[Argument]]] = [(history, [entry])]
    lists += [(append, entries[append.target]) for append in keys.appends if entries.get(append.target)]
    streams = [(stream, entries[stream.target]) for stream in keys.streams if entries.get(stream.target)]
    arguments: list[Argument] = []
    for group in (lists, streams):
        arguments.append(len(group))
        for append, new in group:
            arguments += (keys.number(append.key), append.length_max, len(new), *new)
    return arguments


def run(client: Any, name: str, keys: Keys, arguments: Sequence[Argument], touched: Sequence[bytes] = ()) -> list[str]:
    """Run the script `name` and return its reply, which may be a refusal. Raises redis-py's errors.

    `touched` are keys of buckets that it changes.
    """
    return _run(client, name, keys.for_scripts, arguments, touched)


def _run(
    client: Any, name: str, keys: Sequence[str], arguments: Sequence[Argument], touched: Sequence[bytes] = ()
) -> list[str]:
    body, digest = script(name)
    words = (len(keys) + len(touched), *keys, *touched, len(keys) // 2, *arguments)

    def call() -> Sequence[Any]:
        try:
            return cast(Sequence[Any], client.evalsha(digest, *words))
        except redis.exceptions.NoScriptError:
            return cast(Sequence[Any], client.eval(body, *words))

    return texts(redis_errors.patiently(call, pool=client.connection_pool))


def forget(client: Any, marker: str, keys: Sequence[str], buckets: Sequence[bytes] = ()) -> None:
    """Delete those of `keys` that belong to the marker, with their claims; before, their `buckets`, in several steps.

    Raises redis-py's errors.
    """
    own = with_claims(list(dict.fromkeys([marker, *keys])))
    for first in range(0, len(buckets), BUCKETS_PER_STEP):
        _run(client, "forget", own, [], buckets[first : first + BUCKETS_PER_STEP])
    _run(client, "forget", own, [])


def buckets_in(client: Any, indexes: Sequence[Index], *, besides: Collection[str]) -> Iterator[list[bytes]]:
    """Yield the existing keys that are named as buckets of these indexes, some at a time, except `besides`.

    Raises redis-py's errors.
    """
    others = {key.encode("utf-8", "surrogateescape") for key in besides}
    for index in indexes:
        pattern = f"{glob_escaped(index.key)}:*"
        keys: list[bytes] = []
        for key in client.scan_iter(match=pattern, count=SCAN_KEYS):
            if index.may_name(key) and key not in others:
                keys.append(key)
            if len(keys) == BUCKETS_PER_STEP:
                yield keys
                keys = []
        if keys:
            yield keys


def glob_escaped(key: str) -> str:
    """Return a pattern of SCAN that matches `key` alone."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", key)


def settle(client: Any, keys: Keys, arguments: Sequence[Argument], *, wait_ms: int) -> bool:
    """Run `settle` and wait until its write, and so every earlier one, is synced to the append-only file.

    Arguments: query, owner, batch. Return false after `wait_ms`. Raises the same errors as `raise_refusal`.
    """
    reply, is_synced = _synced(client, "settle", keys, arguments, (), wait_ms)
    raise_refusal(keys, reply)
    return is_synced


def _synced(
    client: Any, name: str, keys: Keys, arguments: Sequence[Argument], touched: Sequence[str], wait_ms: int
) -> tuple[list[str], bool]:
    """Run a script; return its reply, and whether its write was synced within `wait_ms`."""
    source, _ = script(name)
    names = [*keys.for_scripts, *touched]

    def call() -> Any:
        pipeline = client.pipeline(transaction=False)
        pipeline.eval(source, len(names), *names, len(keys.own), *arguments)
        # WAITAOF waits for the last write of its own connection, and a pipeline has one.
        pipeline.execute_command("WAITAOF", 1, 0, wait_ms)
        return pipeline.execute()

    reply, synced = redis_errors.patiently(call, pool=client.connection_pool)
    return texts(reply), int(synced[0]) >= 1


def replace_counts(
    client: Any, keys: Keys, other: Keys, arguments: Sequence[Argument], *, wait_ms: int | None
) -> tuple[list[str], bool]:
    """Run `replace`, which makes these counts those of the sink `other`; wait for Redis's disk unless None.

    Return the reply, and whether the write was synced. Arguments: those before the indexes. Raises redis-py's errors.
    """
    all_arguments, touched = [*arguments, *index_arguments(keys)], [other.marker, *other.data]
    if wait_ms is not None:
        return _synced(client, "replace", keys, all_arguments, touched, wait_ms)
    return _run(client, "replace", keys.for_scripts, all_arguments, [key.encode() for key in touched]), True


def marker_fields(client: Any, marker: str, data: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the marker's fields, and the `data` keys that do not exist, at one instant. Raises redis-py's errors."""

    def read() -> Any:
        pipeline = client.pipeline(transaction=True)
        pipeline.hgetall(marker)
        for key in data:
            pipeline.exists(key)
        return pipeline.execute()

    fields, *present = redis_errors.patiently(read, pool=client.connection_pool)
    absent = [key for key, exists in zip(data, present, strict=True) if not exists]
    return {name.decode(): value.decode() for name, value in fields.items()}, absent


def look(client: Any, keys: Keys, owner: str, index: Index, cursor: int) -> int:
    """Check whether some of an index's buckets exist; return the next cursor, 0 at the end.

    Raises BucketLost if one does not exist, and redis-py's errors.
    """
    arguments: list[Argument] = [owner, keys.number(index.key), cursor, LOOK_MEMBERS]
    reply = run(client, "look", keys, arguments)
    raise_refusal(keys, reply)
    return int(reply[1])


def confirm_loss(client: Any, keys: Keys, owner: str, lost: BucketLost) -> None:
    """Record the lost bucket in the marker unless it exists. Waits while its slot moves. Raises redis-py's errors."""
    bucket = lost.index_key.encode() + b":" + lost.member
    run(client, "confirm", keys, [owner, keys.number(lost.index_key), lost.member], [bucket])


def claimed(client: Any, claims: Sequence[str]) -> dict[str, str]:
    """Return all keys in these claims hashes, each with the marker that it belongs to. Raises redis-py's errors."""
    pairs = [pair for name in claims for pair in client.hgetall(name).items()]
    return {key.decode("utf-8", "surrogateescape"): claim.decode("utf-8", "surrogateescape") for key, claim in pairs}


def claims_of(client: Any, keys: Sequence[str]) -> dict[str, str]:
    """Return the marker that each of `keys` belongs to, without unclaimed keys. Raises redis-py's errors."""

    def read() -> Any:
        pipeline = client.pipeline(transaction=True)
        for key in keys:
            pipeline.hget(claims_key(key), key)
        return pipeline.execute()

    claims = redis_errors.patiently(read, pool=client.connection_pool)
    return {key: claim.decode() for key, claim in zip(keys, claims, strict=True) if claim is not None}


def texts(reply: Sequence[Any]) -> list[str]:
    """Return a script's reply as text; bytes of a field's name that are not UTF-8 are escaped."""
    return [part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else str(part) for part in reply]


@functools.cache
def script(name: str) -> tuple[str, str]:
    """Return source and SHA-1 of `lua/NAME.lua`, after the parts that precede every script."""
    directory = resources.files("onceflow.spark.redis") / "lua"
    body = "\n".join((directory / f"{part}.lua").read_text("utf-8") for part in (*PARTS, name))
    return body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def raise_refusal(keys: Keys, reply: Sequence[str]) -> None:
    """Raise the error of a script's refusal; a reply that is not a refusal is accepted."""
    kind, *values = reply
    reset = Remedy.COUNT_AGAIN.format(reset=keys.reset)
    match kind:
        case "marker":
            raise MarkerRefused(
                f"marker {keys.marker} no longer exists (type {values[0]} instead of hash), so Redis lost it or it was "
                f"deleted: {Remedy.RESTORE_TARGET.format(target='Redis')}, or {reset}"
            )
        case "query":
            raise MarkerRefused(f"marker {keys.marker} now belongs to query {values[0]}: {Remedy.STOP_ONE_QUERY}")
        case "owner":
            raise OwnerLost(
                f"marker {keys.marker} was taken over by a later start of this query (owner epoch {values[0]}): this "
                f"start stops, the later one continues; {Remedy.SHOW_REDIS_SINK}"
            )
        case "moved":
            raise MarkerMoved(
                f"marker {keys.marker} moved to batch {values[0]} (complete {values[1]}) while another batch was being "
                f"written: Redis lost acknowledged writes or the marker was edited; {Remedy.START_AGAIN}"
            )
        case "missing":
            raise MarkerMoved(
                f"marker {keys.marker} lacks acknowledged chunk {values[0]} of {values[1]}, which Redis lost: "
                f"{Remedy.START_AGAIN}, which writes the missing ones"
            )
        case "lost":
            reason = (
                f"marker {keys.marker} has written {values[0]}, and that key no longer exists (evicted, expired or "
                f"deleted): {Remedy.START_AGAIN}"
            )
            raise BucketLost(reason, values[1], bytes.fromhex(values[2])) if values[1:] else MarkerMoved(reason)
        case "unsealed" | "unclaimed":
            raise MarkerMoved(_why_unclaimed(keys, *values))
        case "claimed":
            raise MarkerRefused(claimed_by_other(values[0], values[1], keys.marker))
        case "strange":
            raise MarkerRefused(claimed_by_none(values[0]))
        case "data":
            raise MarkerRefused(
                f"{values[0]} exists before the first batch is written: "
                f"{Remedy.DELETE_COUNTS.format(reset=keys.reset)} or {Remedy.OTHER_HASH_KEY}"
            )
        case "misfit" | "stream" | "amount":
            raise IncompatibleData(_why_incompatible(kind, values, keys))
        case "forbidden":
            raise Forbidden(
                f"the user of the Redis address may not call {values[0]} on the keys of {keys.marker} ({values[1]}): "
                f"{Remedy.ALLOW_COMMANDS}, then {Remedy.START_AGAIN}; nothing was written"
            )
        case "owned" | "done" | "already":
            return
        case _:
            raise MarkerRefused(
                f"a script on marker {keys.marker} returned {list(reply)}, which is not a reply of our scripts"
            )


def _why_unclaimed(keys: Keys, key: str | None = None) -> str:
    """Return the message for a key without a claim, or for a batch whose ids are not claimed."""
    if key is None:
        return (
            f"marker {keys.marker} no longer has the ids of the batch: Redis lost them, or a rebuild has replaced "
            f"them: {Remedy.START_AGAIN}"
        )
    return (
        f"key {key} is no longer claimed for marker {keys.marker}, so Redis lost the claim or it was deleted: "
        f"{Remedy.START_AGAIN}"
    )


def claimed_by_other(key: str, claim: str, marker: str) -> str:
    """Return the message for a key that belongs to another marker."""
    release = shlex.join(["HDEL", claims_key(key), key])
    return (
        f"key {key} belongs to marker {claim}, so the sink with marker {marker} cannot write it: "
        f"{Remedy.OTHER_KEY}; {Remedy.DELETE_CLAIM.format(command=release)}"
    )


def claimed_by_none(key: str) -> str:
    """Return the message for a key that another program has written."""
    delete = shlex.join(["UNLINK", key])
    return (
        f"key {key} exists, and no sink claims it: {Remedy.RENAME_KEY} or {Remedy.DELETE_KEY.format(command=delete)}, "
        f"then {Remedy.START_AGAIN}; nothing was written"
    )


def _why_incompatible(kind: str, values: Sequence[str], keys: Keys) -> str:
    """Return the message for a key, field or amount that does not allow adding."""
    if kind == "stream":
        return (
            f"stream {values[0]} in Redis has had an entry {values[1]}, which is after those of batch {values[2]}: "
            f"nothing was added; another program adds to the stream, so {Remedy.RENAME_KEY}, then "
            f"{Remedy.START_AGAIN}{_without_rebuild(keys, values[0])}"
        )
    if kind == "amount":
        return (
            f"the batch has {values[2]!r} for field {values[1]!r} of {values[0]}, not a whole number of at most "
            f"18 digits: nothing was added; {Remedy.REFUSE_AMOUNTS}"
        )
    if not values[1]:
        delete = Remedy.DELETE_KEY.format(command=shlex.join(["UNLINK", values[0]]))
        return (
            f"key {values[0]} in Redis is of type {values[2]}, which cannot hold counts: {Remedy.RENAME_KEY} or "
            f"{delete}, then {Remedy.START_AGAIN}{_without_rebuild(keys, values[0])}"
        )
    if re.fullmatch(r"-?[1-9]\d{18,}", values[2]):
        return (
            f"field {values[1]!r} of {values[0]} in Redis has reached {values[2]}, above the limit of 18 digits for a "
            f"sum: nothing was added; {Remedy.LEAVE_OUT_AMOUNTS}, then "
            f"{Remedy.COUNT_AGAIN.format(reset=keys.reset)}"
        )
    return (
        f"field {values[1]!r} of {values[0]} in Redis is {values[2]!r}, not a whole number of at most 18 digits: "
        f"nothing was added; {Remedy.CORRECT_FIELD}, then {Remedy.START_AGAIN}"
    )


def _without_rebuild(keys: Keys, key: str) -> str:
    """Return the end of the message if the sink has written the key before, so that it counts as lost."""
    is_bucket = any(key.startswith(f"{index.key}:") for index in keys.indexes)
    if key not in keys.data and not is_bucket:
        return ""
    reset = Remedy.COUNT_AGAIN.format(reset=keys.reset)
    return f", which needs rebuild= to count its contents again; without it {reset}"
