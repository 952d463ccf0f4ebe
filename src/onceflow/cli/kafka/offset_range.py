"""Start and end offsets of `consume`: the offset grammar of rpk, resolved for a topic's partitions.

    start, end              the log's start, its end
    47, 47:                 that offset
    +47, -47                47 offsets after the start, 47 before the end
    :end, :47               from the start to the current end, to that offset
    10:47, 47:end           from offset 10 to offset 47, from 47 to the current end
    @TIME, @TIME:           the first record at or after that time
    @:TIME                  from the start to a time
    @TIME:TIME, @TIME:end   from one time to another; a duration as the second time counts from the first, or from now
                            if negative

Ends are exclusive. TIME as in `onceflow.cli.times`.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from onceflow.cli.output import counted
from onceflow.cli.times import duration_ms, moment_ms

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.metadata import TopicMetadata

DIGITS_MAX = 18


class _InvalidOffset(ValueError):
    """Text in none of the forms."""


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a range: `kind` is start, end, exact, after_start, before_end or timestamp (ms)."""

    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Start and end of a read; end None: continue indefinitely."""

    start: Place
    end: Place | None = None


def to_offset_range(context: click.Context, parameter: click.Parameter, value: str) -> OffsetRange:
    """Parse `--offset`."""
    try:
        asked = _range(value)
    except _InvalidOffset:
        forms = "start, end, 47, +47, -47, :end, :47, 10:47, 47:end, @TIME, @TIME:TIME, @TIME:end or @:TIME"
        raise click.BadParameter(f"'{value}' is not a valid offset; expected {forms}") from None
    start, end = asked.start, asked.end
    if end is not None and start.kind == end.kind != "end" and end.number < start.number:
        raise click.BadParameter(f"'{value}' ends before it starts")
    return asked


def to_place(context: click.Context, parameter: click.Parameter, value: str) -> OffsetRange:
    """Parse `--before`: one place, not a range."""
    try:
        asked = _range(value)
    except _InvalidOffset:
        raise click.BadParameter(f"'{value}' is not a valid offset; expected end, 47, +47, -47 or @TIME") from None
    if asked.end is not None:
        raise click.BadParameter(f"'{value}' is a range; --before takes one offset")
    return asked


def _range(value: str) -> OffsetRange:
    if value.startswith("@") and value not in ("@", "@:"):
        return _time_range(value[1:])
    start, colon, end = value.partition(":")
    if not colon or (start and not end):
        return OffsetRange(_place(start))
    return OffsetRange(_place(start) if start else Place("start"), _exact_or_end(end))


def _place(text: str) -> Place:
    if text in ("start", "end"):
        return Place(text)
    kind = {"+": "after_start", "-": "before_end"}.get(text[:1], "exact")
    return Place(kind, _number(text if kind == "exact" else text[1:]))


def _exact_or_end(text: str) -> Place:
    return Place("end") if text == "end" else Place("exact", _number(text))


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise _InvalidOffset
    return int(digits)


def _time_range(text: str) -> OffsetRange:
    now_ms = time.time_ns() // 1_000_000
    start, end = _split_times(text)
    start_ms = _asked_ms(start, now_ms) if start else None
    place = Place("start") if start_ms is None else Place("timestamp", start_ms)
    if not end:
        return OffsetRange(place)
    if end == "end":
        return OffsetRange(place, Place("end"))
    length_ms = duration_ms(end)
    if start_ms is not None and length_ms is not None:
        return OffsetRange(place, Place("timestamp", start_ms + length_ms))
    return OffsetRange(place, Place("timestamp", _asked_ms(end, now_ms)))


def _asked_ms(text: str, now_ms: int) -> int:
    """Return a time in ms. It may be in the future, as records' timestamps may; a positive duration lacks its minus."""
    if duration_ms(text):
        raise click.BadParameter(f"{text} is in the future; write -{text} for {text} ago")
    return moment_ms(text, now_ms)


def _split_times(text: str) -> tuple[str, str]:
    """Return the two times. Times contain colons: the separator has a valid time, or nothing, on both sides."""
    candidates = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == ":"]
    for start, end in candidates:
        if _is_time(start) and (end == "end" or _is_time(end)):
            return start, end
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
    """Return the start and (exclusive) end offsets of each partition, and whether the range itself has an end.

    Raises OffsetOutOfRange for an exact start offset outside the log.
    """
    from onceflow.client.cluster import EARLIEST, LATEST
    from onceflow.client.errors import OffsetOutOfRange

    wanted = list(partitions)

    def listed(timestamp_ms: int) -> dict[int, int]:
        offsets = cluster.list_offsets(topic, dict.fromkeys(wanted, timestamp_ms), read_committed=read_committed)
        return {partition: at.offset for partition, at in offsets.items()}

    starts, ends = listed(EARLIEST), listed(LATEST)

    def places(place: Place) -> dict[int, int]:
        match place.kind:
            case "start":
                return starts
            case "end":
                return ends
            case "after_start":
                return {number: min(starts[number] + place.number, ends[number]) for number in wanted}
            case "before_end":
                return {number: max(ends[number] - place.number, starts[number]) for number in wanted}
            case "timestamp":
                return {number: ends[number] if at < 0 else at for number, at in listed(place.number).items()}
            case _:
                return dict.fromkeys(wanted, place.number)

    firsts = places(asked.start)
    if asked.start.kind == "exact":
        for number in wanted:
            if not starts[number] <= firsts[number] <= ends[number]:
                raise OffsetOutOfRange(topic, number, firsts[number], starts[number], ends[number])
    if asked.end is None:
        return firsts, ends, False
    return firsts, {number: max(end, firsts[number]) for number, end in places(asked.end).items()}, True


def wanted_partitions(topic: "TopicMetadata", partitions: Sequence[int]) -> list[int]:
    """Return the partitions given with `--partition`, or all. Raises click.BadParameter for an unknown one."""
    for partition in partitions:
        if partition not in topic.partitions:
            raise click.BadParameter(
                f"{topic.name} has {counted(len(topic.partitions), 'partition')} (0 to {len(topic.partitions) - 1}); "
                f"there is no partition {partition}",
                param_hint="--partition",
            )
    return sorted(set(partitions) or topic.partitions)
