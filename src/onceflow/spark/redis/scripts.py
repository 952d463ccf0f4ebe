"""The sink's Lua scripts (`lua/*.lua`), called with a batch's values; their refusals become exceptions.

A call can be sent again at any time: every script finds by the marker that it has already run and changes nothing.
"""

import functools
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

import redis

from onceflow.redis import errors as redis_answers
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.sink_errors import AttemptEnded, MarkerRefused, SinkStopped
from onceflow.spark.redis.marker import RESET, claims_key

Argument = str | bytes | int


class MarkerMoved(AttemptEnded):
    """The marker is not where this start left it: Redis went back while it ran. Reading it anew decides."""


class OwnerLost(SinkStopped):
    """Another start of the query has taken the counts over; this one must stop."""


class Forbidden(SinkStopped):
    """The user of the Redis address may not call what the scripts call."""


class DataMisfit(SinkStopped):
    """A key has another type, or a field another value, than can be added to."""


@dataclass(frozen=True, slots=True)
class Increment:
    """Rows of `target` add their amount to a field of the hash `key`; `ranking_key` is a sorted set that follows it.

    The ranking's scores repeat the hash's values; beyond 2^53 a score is the nearest double.
    """

    target: str
    key: str
    ranking_key: str | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Rows of `target` are entries of the list `key`: the newest `length_max` by amount, newest first."""

    target: str
    key: str
    length_max: int


@dataclass(frozen=True, slots=True)
class SetIfNewer:
    """Rows of `target` set a field of the hash `key` to their value, if their amount is greater than any before.

    The amount is the value's version, such as a time; `versions_key` is a hash of the greatest one of each field. Of
    two values of one version the one whose bytes come last stays, in whatever order they arrive.
    """

    target: str
    key: str
    versions_key: str


@dataclass(frozen=True, slots=True)
class StreamAppend:
    """Rows of `target` are entries of the stream `key`: the newest `length_max`, in the order of their amounts.

    An entry's id is the number of its micro-batch and its place there from 1, such as `17-1`; what it holds is one
    field, `value`. Nobody else may add to the stream. A repair makes batches that Redis lost into one or two, so
    entries may then get other ids than before.
    """

    target: str
    key: str
    length_max: int


Target = Increment | Append | SetIfNewer | StreamAppend


@dataclass(frozen=True)
class Keys:
    """Every key of one sink, in the order in which all scripts are handed them."""

    marker: str
    history: str
    increments: tuple[Increment, ...]
    appends: tuple[Append, ...]
    sets: tuple[SetIfNewer, ...] = ()
    streams: tuple[StreamAppend, ...] = ()
    reset: str = RESET
    """The command that forgets all of them, for sentences."""

    # Without slots, for the cache.
    @functools.cached_property
    def data(self) -> list[str]:
        """The keys beside marker and history, each once."""
        return list(dict.fromkeys(self.named))

    @property
    def named(self) -> list[str]:
        """The keys beside marker and history, as often as they were given."""
        keys = [increment.key for increment in self.increments]
        keys += [increment.ranking_key for increment in self.increments if increment.ranking_key is not None]
        keys += [append.key for append in self.appends] + [stream.key for stream in self.streams]
        return keys + [key for each in self.sets for key in (each.key, each.versions_key)]

    @property
    def targets(self) -> list[str]:
        """What a row's target may be."""
        groups: tuple[Sequence[Target], ...] = (self.increments, self.appends, self.sets, self.streams)
        return [each.target for group in groups for each in group]

    @property
    def entry_targets(self) -> list[str]:
        """Those whose rows are entries of a list or a stream."""
        return [append.target for append in self.appends] + [stream.target for stream in self.streams]

    @functools.cached_property
    def own(self) -> list[str]:
        """The keys that are claimed for the marker."""
        return [self.marker, self.history, *self.data]

    @functools.cached_property
    def all(self) -> list[str]:
        """Every key that the scripts touch, each once."""
        return [*self.own, *self.claims]

    @property
    def claims(self) -> list[str]:
        """The claims hashes, each once."""
        return list(dict.fromkeys(map(claims_key, self.own)))

    @functools.cached_property
    def for_scripts(self) -> list[str]:
        """KEYS of every script."""
        return with_claims(self.own)

    def number(self, key: str) -> int:
        """Lua's number, from 1, of `key` among KEYS."""
        return self.own.index(key) + 1


def with_claims(keys: Sequence[str]) -> list[str]:
    """Return KEYS of a script: `keys`, then the claims hash of each."""
    return [*keys, *map(claims_key, keys)]


Counts = Mapping[tuple[str, bytes], int]
"""(target, field) → amount: each pair once."""

Entries = Mapping[str, Sequence[bytes]]
"""Target of an Append or a StreamAppend → its new entries, oldest first."""

Row = tuple[str, bytes, int, bytes | None]
"""Target, field, amount, value; each target and field once. The value is a SetIfNewer's."""


def field_arguments(fields: Mapping[str, str]) -> list[Argument]:
    """Fields of the marker as a script takes them."""
    return [len(fields), *(text for pair in fields.items() for text in pair)]


def acquire_arguments(keys: Keys, query: str, fields: Mapping[str, str], *, may_make: bool) -> list[Argument]:
    """What `acquire` takes; `fields` are the marker's first ones."""
    return [query, int(may_make), *field_arguments(fields), len(keys.streams)]


def count_arguments(keys: Keys, rows: Sequence[Row]) -> list[Argument]:
    """Rankings, counts and sets as a script takes them."""
    rankings = [
        (keys.number(increment.key), keys.number(increment.ranking_key))
        for increment in keys.increments
        if increment.ranking_key is not None
    ]
    hashes = {increment.target: keys.number(increment.key) for increment in keys.increments}
    pairs = {each.target: (keys.number(each.key), keys.number(each.versions_key)) for each in keys.sets}
    counts: list[Argument] = []
    sets: list[Argument] = []
    for target, field, amount, value in rows:
        if target in hashes:
            counts += (hashes[target], field, amount)
        else:
            sets += (*pairs[target], field, amount, value or b"")
    numbers = [number for pair in rankings for number in pair]
    return [len(rankings), *numbers, len(counts) // 3, *counts, len(sets) // 5, *sets]


def list_arguments(keys: Keys, history: Append, entry: str, entries: Entries) -> list[Argument]:
    """Lists and streams as a script takes them: one entry of the history, and the new entries of each target."""
    lists: list[tuple[Append | StreamAppend, Sequence[Argument]]] = [(history, [entry])]
    lists += [(append, entries[append.target]) for append in keys.appends if entries.get(append.target)]
    streams = [(stream, entries[stream.target]) for stream in keys.streams if entries.get(stream.target)]
    arguments: list[Argument] = []
    for group in (lists, streams):
        arguments.append(len(group))
        for append, new in group:
            arguments += (keys.number(append.key), append.length_max, len(new), *new)
    return arguments


def run(client: Any, name: str, keys: Keys, arguments: Sequence[Argument]) -> list[str]:
    """Runs the script `name` and returns its answer, which may be a refusal. Raises redis-py's errors."""
    return _run(client, name, keys.for_scripts, arguments)


def _run(client: Any, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> list[str]:
    body, digest = script(name)

    def call() -> Sequence[Any]:
        try:
            return cast(Sequence[Any], client.evalsha(digest, len(keys), *keys, *arguments))
        except redis.exceptions.NoScriptError:
            return cast(Sequence[Any], client.eval(body, len(keys), *keys, *arguments))

    return texts(redis_answers.patiently(call, pool=client.connection_pool))


def forget(client: Any, marker: str, keys: Sequence[str]) -> None:
    """Delete those of `keys` that belong to the marker, with their claims. Raises redis-py's errors."""
    _run(client, "forget", with_claims(list(dict.fromkeys([marker, *keys]))), [])


def settle(client: Any, keys: Keys, arguments: Sequence[Argument], *, wait_ms: int) -> bool:
    """Runs `settle` and waits until its write, and so every one before it, is synced to the append-only file.

    Arguments: query, owner, batch. False if that took longer than `wait_ms`. Raises as `raise_refusal` does.
    """
    source, _ = script("settle")

    def call() -> Any:
        pipeline = client.pipeline(transaction=False)
        pipeline.eval(source, len(keys.for_scripts), *keys.for_scripts, *arguments)
        # WAITAOF waits for the last write of its own connection, and a pipeline has one.
        pipeline.execute_command("WAITAOF", 1, 0, wait_ms)
        return pipeline.execute()

    answer, synced = redis_answers.patiently(call, pool=client.connection_pool)
    raise_refusal(keys, texts(answer))
    return int(synced[0]) >= 1


def marker_fields(client: Any, marker: str, data: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the marker's fields, and the `data` keys that do not exist, at one instant. Raises redis-py's errors."""

    def read() -> Any:
        pipeline = client.pipeline(transaction=True)
        pipeline.hgetall(marker)
        for key in data:
            pipeline.exists(key)
        return pipeline.execute()

    fields, *present = redis_answers.patiently(read, pool=client.connection_pool)
    absent = [key for key, there in zip(data, present, strict=True) if not there]
    return {name.decode(): value.decode() for name, value in fields.items()}, absent


def claims_of(client: Any, keys: Sequence[str]) -> dict[str, str]:
    """Return the marker that each of `keys` belongs to; those that no sink claims are left out.

    Raises redis-py's errors.
    """

    def read() -> Any:
        pipeline = client.pipeline(transaction=True)
        for key in keys:
            pipeline.hget(claims_key(key), key)
        return pipeline.execute()

    found = redis_answers.patiently(read, pool=client.connection_pool)
    return {key: claim.decode() for key, claim in zip(keys, found, strict=True) if claim is not None}


def texts(answer: Sequence[Any]) -> list[str]:
    """A script's answer as text; what is not UTF-8 in a field's name is shown escaped."""
    return [part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else str(part) for part in answer]


@functools.cache
def script(name: str) -> tuple[str, str]:
    """Source and SHA-1 of `lua/NAME.lua` behind what all scripts begin with."""
    directory = resources.files("onceflow.spark.redis") / "lua"
    body = "\n".join((directory / f"{part}.lua").read_text("utf-8") for part in ("fence", name))
    return body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def raise_refusal(keys: Keys, answer: Sequence[str]) -> None:
    """Raises what a script's refusal means; an answer that is none passes."""
    kind, *found = answer
    reset = Remedy.COUNT_AGAIN.format(reset=keys.reset)
    match kind:
        case "marker":
            raise MarkerRefused(
                f"marker {keys.marker} is not there any more (type {found[0]}, a hash was there): Redis lost it or "
                f"somebody deleted it; {Remedy.RESTORE_TARGET.format(target='Redis')}, or {reset}"
            )
        case "query":
            raise MarkerRefused(f"marker {keys.marker} now belongs to query {found[0]}: {Remedy.STOP_ONE_QUERY}")
        case "owner":
            raise OwnerLost(
                f"marker {keys.marker} was taken over by a later start of this query (owner epoch {found[0]}): this "
                f"start stops, the later one goes on; {Remedy.SHOW_REDIS_SINK}"
            )
        case "moved":
            raise MarkerMoved(
                f"marker {keys.marker} moved to batch {found[0]} (complete {found[1]}) while another batch was being "
                f"written: Redis lost acknowledged writes or the marker was edited; {Remedy.START_AGAIN}"
            )
        case "missing":
            raise MarkerMoved(
                f"marker {keys.marker} lacks chunk {found[0]} of {found[1]} that was acknowledged: Redis lost it; "
                f"{Remedy.START_AGAIN} and it writes what is missing"
            )
        case "lost":
            raise MarkerMoved(
                f"marker {keys.marker} has written {found[0]}, and that key does not exist any more (evicted, expired "
                f"or deleted); {Remedy.START_AGAIN}"
            )
        case "unclaimed":
            raise MarkerMoved(
                f"key {found[0]} is not claimed for marker {keys.marker} any more: Redis lost the claim, or it was "
                f"deleted; {Remedy.START_AGAIN}"
            )
        case "claimed":
            raise MarkerRefused(claimed_by_other(found[0], found[1], keys.marker))
        case "strange":
            raise MarkerRefused(claimed_by_none(found[0]))
        case "data":
            raise MarkerRefused(
                f"{found[0]} exists before the first batch has written anything: "
                f"{Remedy.DELETE_COUNTS.format(reset=keys.reset)} or {Remedy.OTHER_HASH_KEY}"
            )
        case "misfit" | "stream" | "amount":
            raise DataMisfit(_why_misfit(kind, found, keys))
        case "forbidden":
            raise Forbidden(
                f"the user of the Redis address may not call {found[0]} on the keys beside {keys.marker} ({found[1]}): "
                f"{Remedy.ALLOW_COMMANDS}, then {Remedy.START_AGAIN}; nothing was written"
            )
        case "owned" | "done" | "already":
            return
        case _:
            raise MarkerRefused(
                f"a script on marker {keys.marker} answered {list(answer)}, which no script of ours does"
            )


def claimed_by_other(key: str, claim: str, marker: str) -> str:
    """Return the message for a key that belongs to another marker."""
    free = shlex.join(["HDEL", claims_key(key), key])
    return (
        f"key {key} belongs to marker {claim}, so the sink with marker {marker} cannot write it: "
        f"{Remedy.OTHER_KEY}; {Remedy.DELETE_CLAIM.format(command=free)}"
    )


def claimed_by_none(key: str) -> str:
    """Return the message for a key that something else has written."""
    delete = shlex.join(["UNLINK", key])
    return (
        f"key {key} exists, and no sink claims it: {Remedy.RENAME_KEY} or {Remedy.DELETE_KEY.format(command=delete)}, "
        f"then {Remedy.START_AGAIN}; nothing was written"
    )


def _why_misfit(kind: str, found: Sequence[str], keys: Keys) -> str:
    """The sentence for what cannot be added to, or cannot be added."""
    if kind == "stream":
        return (
            f"stream {found[0]} in Redis has had an entry {found[1]}, which those of batch {found[2]} would come "
            f"before: nothing was added; somebody else adds to the stream, so {Remedy.RENAME_KEY}, then "
            f"{Remedy.START_AGAIN}{_without_rebuild(keys, found[0])}"
        )
    if kind == "amount":
        return (
            f"the batch brings {found[2]!r} for field {found[1]!r} of {found[0]}, not a whole number of at most "
            f"18 digits: nothing was added; {Remedy.REFUSE_AMOUNTS}"
        )
    if not found[1]:
        delete = Remedy.DELETE_KEY.format(command=shlex.join(["UNLINK", found[0]]))
        return (
            f"key {found[0]} in Redis is of type {found[2]}, which cannot be counted in: {Remedy.RENAME_KEY} or "
            f"{delete}, then {Remedy.START_AGAIN}{_without_rebuild(keys, found[0])}"
        )
    if re.fullmatch(r"-?[1-9]\d{18,}", found[2]):
        return (
            f"field {found[1]!r} of {found[0]} in Redis has reached {found[2]}, and only a sum of at most 18 digits "
            f"can be added to: nothing was added; {Remedy.LEAVE_OUT_AMOUNTS}, then "
            f"{Remedy.COUNT_AGAIN.format(reset=keys.reset)}"
        )
    return (
        f"field {found[1]!r} of {found[0]} in Redis is {found[2]!r}, not a whole number of at most 18 digits: "
        f"nothing was added; {Remedy.CORRECT_FIELD}, then {Remedy.START_AGAIN}"
    )


def _without_rebuild(keys: Keys, key: str) -> str:
    """Return what follows where the sink has written the key before: it is a lost one then."""
    if key not in keys.data:
        return ""
    reset = Remedy.COUNT_AGAIN.format(reset=keys.reset)
    return f", which needs rebuild= to count again what was there; without it {reset}"
