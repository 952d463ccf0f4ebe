"""Where `consume` begins and ends: the offset grammar of rpk, resolved against a topic's partitions.

    start, end              the log's start, its end
    47, 47:                 that offset
    +47, -47                so many after the start, so many before the end
    :end, :47               from the start up to the end as it is now, up to that offset
    10:47, 47:end           from offset 10 up to offset 47, from 47 up to the present end
    @TIME, @TIME:           the first record of that time or later
    @:TIME                  from the start up to a time
    @TIME:TIME, @TIME:end   from one time up to another; a duration in the second place counts from the first, one
                            with a minus from now

What an end names is not read any more. TIME as in `onceflow.cli.kafka.times`.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from onceflow.cli.kafka.times import duration_ms, moment_ms
from onceflow.cli.output import counted

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.metadata import TopicMetadata

DIGITS_MAX = 18


class _NoOffset(ValueError):
    """A word that is none of the forms."""


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a range: `kind` is start, end, exact, after_start, before_end or timestamp (ms)."""

    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Where to begin, and where to end; None: do not end."""

    begin: Place
    end: Place | None = None


def to_offset_range(context: click.Context, parameter: click.Parameter, value: str) -> OffsetRange:
    """The callback of `--offset`."""
    try:
        asked = _range(value)
    except _NoOffset:
        forms = "start, end, 47, +47, -47, :end, :47, 10:47, 47:end, @TIME, @TIME:TIME, @TIME:end or @:TIME"
        raise click.BadParameter(f"'{value}' is no offset: write {forms}") from None
    begin, end = asked.begin, asked.end
    if end is not None and begin.kind == end.kind != "end" and end.number < begin.number:
        raise click.BadParameter(f"'{value}' ends before it begins")
    return asked


def to_place(context: click.Context, parameter: click.Parameter, value: str) -> OffsetRange:
    """The callback of `--before`: as `--offset`, without an end."""
    try:
        asked = _range(value)
    except _NoOffset:
        raise click.BadParameter(f"'{value}' is no offset: write end, 47, +47, -47 or @TIME") from None
    if asked.end is not None:
        raise click.BadParameter(f"'{value}': --before takes one place, not a range")
    return asked


def _range(value: str) -> OffsetRange:
    if value.startswith("@") and value not in ("@", "@:"):
        return _time_range(value[1:])
    begin, colon, end = value.partition(":")
    if not colon or (begin and not end):
        return OffsetRange(_place(begin))
    return OffsetRange(_place(begin) if begin else Place("start"), _exact_or_end(end))


def _place(text: str) -> Place:
    if text in ("start", "end"):
        return Place(text)
    kind = {"+": "after_start", "-": "before_end"}.get(text[:1], "exact")
    return Place(kind, _number(text if kind == "exact" else text[1:]))


def _exact_or_end(text: str) -> Place:
    return Place("end") if text == "end" else Place("exact", _number(text))


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise _NoOffset
    return int(digits)


def _time_range(text: str) -> OffsetRange:
    now_ms = time.time_ns() // 1_000_000
    begin, end = _split_times(text)
    begins_ms = _asked_ms(begin, now_ms) if begin else None
    place = Place("start") if begins_ms is None else Place("timestamp", begins_ms)
    if not end:
        return OffsetRange(place)
    if end == "end":
        return OffsetRange(place, Place("end"))
    length_ms = duration_ms(end)
    if begins_ms is not None and length_ms is not None:
        return OffsetRange(place, Place("timestamp", begins_ms + length_ms))
    return OffsetRange(place, Place("timestamp", _asked_ms(end, now_ms)))


def _asked_ms(text: str, now_ms: int) -> int:
    """A day or a number may lie in the future, as records may that are dated so; a duration does by a lost minus."""
    if duration_ms(text):
        raise click.BadParameter(f"{text} lies in the future: -{text} is that long ago")
    return moment_ms(text, now_ms)


def _split_times(text: str) -> tuple[str, str]:
    """Times have colons of their own: the one between two times stands where both sides are times, or nothing."""
    candidates = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == ":"]
    for begin, end in candidates:
        if _is_time(begin) and (end == "end" or _is_time(end)):
            return begin, end
    return text, ""


def _is_time(text: str) -> bool:
    if not text:
        return True
    try:
        moment_ms(text, 0)
    except click.BadParameter:
        return False
    return True


def resolve(
    cluster: "Cluster", topic: str, partitions: Iterable[int], asked: OffsetRange, *, read_committed: bool
) -> tuple[dict[int, int], dict[int, int], bool]:
    """(first offset, offset behind the last, whether the range itself has an end) of each partition.

    Raises OffsetOutOfRange for an exact first offset that a log does not have.
    """
    from onceflow.client.cluster import EARLIEST, LATEST
    from onceflow.client.errors import OffsetOutOfRange

    wanted = list(partitions)

    def listed(timestamp_ms: int) -> dict[int, int]:
        found = cluster.list_offsets(topic, dict.fromkeys(wanted, timestamp_ms), read_committed=read_committed)
        return {partition: at.offset for partition, at in found.items()}

    starts, ends = listed(EARLIEST), listed(LATEST)

    def places(place: Place) -> dict[int, int]:
        match place.kind:
            case "start":
                return starts
            case "end":
                return ends
            case "after_start":
                return {each: min(starts[each] + place.number, ends[each]) for each in wanted}
            case "before_end":
                return {each: max(ends[each] - place.number, starts[each]) for each in wanted}
            case "timestamp":
                return {each: ends[each] if at < 0 else at for each, at in listed(place.number).items()}
            case _:
                return dict.fromkeys(wanted, place.number)

    begins = places(asked.begin)
    if asked.begin.kind == "exact":
        for each in wanted:
            if not starts[each] <= begins[each] <= ends[each]:
                raise OffsetOutOfRange(topic, each, begins[each], starts[each], ends[each])
    if asked.end is None:
        return begins, ends, False
    return begins, {each: max(end, begins[each]) for each, end in places(asked.end).items()}, True


def wanted_partitions(found: "TopicMetadata", partitions: Sequence[int]) -> list[int]:
    """The partitions given with `--partition`, or all; raises click.BadParameter for one that there is not."""
    for partition in partitions:
        if partition not in found.partitions:
            raise click.BadParameter(
                f"{found.name} has {counted(len(found.partitions), 'partition')}, counted from 0, not {partition}",
                param_hint="--partition",
            )
    return sorted(set(partitions) or found.partitions)
