"""Options `aggregate` and `groupBy`: `sum(click_count), count(*)` by `uid, window(event_time, '1 minute')`.

`groupBy` is one list of keys, or several as in SQL: `GROUPING SETS ((uid), (os, window(event_time, '1 hour')), ())`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types

from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown.decode_schema import DECIMAL_DIGITS_MAX, split_list

AGGREGATE = "aggregate"
GROUP_BY = "groupBy"
REJECTED = "rejected"
GROUPING_ID = "grouping_id"

Function = Literal["sum", "count", "min", "max"]
FUNCTIONS: dict[str, Function] = {"sum": "sum", "count": "count", "min": "min", "max": "max"}

SUM_DIGITS_MORE = 10
"""Additional digits of the sum of a DECIMAL, as in SQL."""

KEYS_OF_SETS_MAX = 63
"""`grouping_id` is a BIGINT with a bit for each key."""

_SETS = re.compile(r"GROUPING\s+SETS\s*\((?P<sets>.*)\)", re.IGNORECASE | re.DOTALL)
_ITEM = re.compile(r"(?P<what>.+?)(?:\s+AS\s+(?P<alias>`(?:[^`]|``)+`|\w+))?", re.IGNORECASE | re.DOTALL)
_CALL = re.compile(r"(?P<name>\w+)\s*\(\s*(?P<arguments>.*?)\s*\)", re.DOTALL)
_DURATION = re.compile(r"""(['"])\s*(?:interval\s+)?(?P<text>[^'"]*?)\s*\1""", re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]{1,12})\s+([a-z]+)")
_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}

_WHOLE_NUMBERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_FLOATS = (types.FloatType, types.DoubleType)
_TIMES = (types.TimestampType, types.DateType)
_WINDOW = types.StructType([types.StructField(name, types.TimestampType()) for name in ("start", "end")])


@dataclass(frozen=True, slots=True)
class Key:
    """Column to group by, and its name in the result."""

    column: str
    name: str
    type: types.DataType


@dataclass(frozen=True, slots=True)
class TimeBucket:
    """Tumbling window over a TIMESTAMP column."""

    column: str
    name: str
    width_us: int

    @property
    def type(self) -> types.DataType:
        """Type of Spark's own window column."""
        return _WINDOW


@dataclass(frozen=True, slots=True)
class Session:
    """Session window over a TIMESTAMP column: it ends when no record follows within the gap."""

    column: str
    name: str
    gap_us: int

    @property
    def type(self) -> types.DataType:
        """Type of Spark's own session_window column."""
        return _WINDOW


AnyKey = Key | TimeBucket | Session


@dataclass(frozen=True, slots=True)
class Measure:
    """Value computed for each group; the column is None for count(*)."""

    function: Function
    column: str | None
    name: str
    type: types.DataType


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Parsed form of both options. At most one key of a grouping set is a window.

    `keys` are those of all grouping sets, in the order of their first use; `sets` is None without GROUPING SETS.
    """

    keys: tuple[AnyKey, ...]
    measures: tuple[Measure, ...]
    sets: tuple[tuple[AnyKey, ...], ...] | None = None

    @property
    def grouping_sets(self) -> tuple[tuple[AnyKey, ...], ...]:
        """All grouping sets: one without GROUPING SETS."""
        return (self.keys,) if self.sets is None else self.sets

    def grouping_id(self, grouping_set: tuple[AnyKey, ...]) -> int:
        """Return Spark's grouping_id: a bit for each key that the set lacks, the first key's bit highest."""
        return sum(1 << number for number, key in enumerate(reversed(self.keys)) if key not in grouping_set)

    def schema(self) -> list[types.StructField]:
        """Return the columns of a group."""
        ids = [] if self.sets is None else [types.StructField(GROUPING_ID, types.LongType())]
        keys, measures = (
            [types.StructField(part.name, part.type) for part in parts] for parts in (self.keys, self.measures)
        )
        return [*keys, *ids, *measures]


Columns = Mapping[str, types.DataType]
"""Columns of the decoded table, by name."""


def parse_aggregation(measures: str, keys: str | None, columns: Columns) -> Aggregation:
    """Parse both options. Raises WrongOption."""
    wanted = tuple(_parse_measure(part, columns) for part in split_list(measures))
    sets = _SETS.fullmatch(keys.strip()) if keys is not None else None
    if sets is None:
        plan = Aggregation(_parse_set(split_list(keys), columns) if keys is not None else (), wanted)
    else:
        by_set = tuple(_parse_set(parts, columns) for parts in map(_parts_of_set, split_list(sets["sets"])))
        plan = Aggregation(tuple(dict.fromkeys(key for keys in by_set for key in keys)), wanted, by_set)
        _require_different_sets(plan)
    _require_different([column.name for column in plan.schema()])
    return plan


def _parts_of_set(part: str) -> list[str]:
    """Return the keys of one grouping set: `(uid, os_type)`, `()` or, as in SQL, a key without brackets."""
    if not (part.startswith("(") and part.endswith(")")):
        return [part]
    inner = part[1:-1].strip()
    return split_list(inner) if inner else []


def _parse_set(parts: Iterable[str], columns: Columns) -> tuple[AnyKey, ...]:
    keys = tuple(_parse_key(part, columns) for part in parts)
    if sum(isinstance(key, TimeBucket | Session) for key in keys) > 1:
        raise WrongOption(
            f"option {GROUP_BY} has two windows in ({', '.join(key.name for key in keys)}); at most one is supported, "
            "as in Spark; give each a list of keys of its own, as in GROUPING SETS ((a), (b))"
        )
    return keys


def _require_different_sets(plan: Aggregation) -> None:
    seen = set()
    for keys in plan.grouping_sets:
        if plan.grouping_id(keys) in seen:
            raise WrongOption(
                f"option {GROUP_BY} has the grouping set ({', '.join(key.name for key in keys)}) twice; remove one"
            )
        seen.add(plan.grouping_id(keys))
    if len(plan.keys) > KEYS_OF_SETS_MAX:
        raise WrongOption(
            f"option {GROUP_BY} has {len(plan.keys)} keys in its grouping sets; {GROUPING_ID} has bits for "
            f"{KEYS_OF_SETS_MAX}: remove some"
        )


def _require_different(names: Iterable[str]) -> None:
    seen = {REJECTED}
    for name in names:
        if name.lower() in seen:
            raise WrongOption(
                f"options {AGGREGATE} and {GROUP_BY} result in two columns {name!r}; rename one with AS"
                if name.lower() != REJECTED
                else f"options {AGGREGATE} and {GROUP_BY} result in a column {name!r}, the name of the rejected "
                "records; rename it with AS"
            )
        seen.add(name.lower())


def _parse_measure(part: str, columns: Columns) -> Measure:
    what, alias = _split_alias(part)
    call = _CALL.fullmatch(what)
    if call is None:
        raise WrongOption(f"option {AGGREGATE}: {part!r} is not like sum(click_count) AS clicks or count(*)")
    function = FUNCTIONS.get(call["name"].lower())
    if function is None:
        nearest = difflib.get_close_matches(call["name"].lower(), FUNCTIONS, n=1, cutoff=0.5)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"the functions are {', '.join(FUNCTIONS)}"
        raise WrongOption(f"option {AGGREGATE}: {part!r} has no function that supports partial results; {remedy}")
    if function == "count" and call["arguments"] in ("*", "1"):
        return Measure("count", None, alias or "count(1)", types.LongType())
    column = _column(AGGREGATE, call["arguments"], columns)
    return Measure(function, column, alias or f"{function}({column})", _type_of(function, column, columns[column]))


def _type_of(function: Function, column: str, given: types.DataType) -> types.DataType:
    if function == "count":
        return types.LongType()
    if isinstance(given, _FLOATS):
        raise WrongOption(
            f"option {AGGREGATE}: {column!r} is {_sql(given)}, and a sum of floats depends on their order, which "
            f"differs when a batch runs again; decode it as DECIMAL, or use Spark's own {function}"
        )
    if isinstance(given, types.DecimalType) and function == "sum":
        return types.DecimalType(min(given.precision + SUM_DIGITS_MORE, DECIMAL_DIGITS_MAX), given.scale)
    if isinstance(given, _WHOLE_NUMBERS) and function == "sum":
        return types.LongType()
    fitting: tuple[type[types.DataType], ...] = (
        *_WHOLE_NUMBERS,
        types.DecimalType,
        *(() if function == "sum" else _TIMES),
    )
    if not isinstance(given, fitting):
        taken = "whole numbers and DECIMAL" + ("" if function == "sum" else ", TIMESTAMP and DATE")
        raise WrongOption(f"option {AGGREGATE}: {column!r} is {_sql(given)}; {function} takes {taken}")
    return given


def _parse_key(part: str, columns: Columns) -> AnyKey:
    what, alias = _split_alias(part)
    call = _CALL.fullmatch(what)
    if call is not None:
        return _parse_window(part, call, alias, columns)
    column = _column(GROUP_BY, what, columns)
    given = columns[column]
    if isinstance(given, (*_FLOATS, types.ArrayType)):
        raise WrongOption(
            f"option {GROUP_BY}: {column!r} is {_sql(given)}, which cannot be a key; decode it as DECIMAL or STRING"
        )
    return Key(column, alias or column, given)


_WINDOW_KEYS: dict[str, type[TimeBucket] | type[Session]] = {"window": TimeBucket, "session_window": Session}


def _parse_window(part: str, call: re.Match[str], alias: str | None, columns: Columns) -> TimeBucket | Session:
    name = call["name"].lower()
    if name in ("cube", "rollup"):
        raise WrongOption(f"option {GROUP_BY}: {part!r} is not supported; write it as GROUPING SETS ((a, b), (a), ())")
    if name not in _WINDOW_KEYS:
        raise WrongOption(
            f"option {GROUP_BY}: {part!r} is neither a column nor like window(event_time, '1 minute') or "
            "session_window(event_time, '30 minutes')"
        )
    arguments = split_list(call["arguments"])
    if len(arguments) != 2:
        raise WrongOption(
            f"option {GROUP_BY}: {part!r} is not like {name}(event_time, '1 minute'); compute windows that slide or "
            "have another start time in Spark, from shorter windows of this kind"
        )
    column = _column(GROUP_BY, arguments[0], columns)
    if not isinstance(columns[column], types.TimestampType):
        raise WrongOption(f"option {GROUP_BY}: {column!r} is {_sql(columns[column])}; a window requires a TIMESTAMP")
    return _WINDOW_KEYS[name](column, alias or name, _width_us(part, arguments[1]))


def _width_us(part: str, text: str) -> int:
    duration = _DURATION.fullmatch(text)
    words = duration["text"].lower() if duration else ""
    pieces = _DURATION_PART.findall(words)
    units = [_UNIT_US.get(unit.removesuffix("s")) for _, unit in pieces]
    width_us = sum(int(number) * (unit or 0) for (number, _), unit in zip(pieces, units, strict=True))
    if not words or _DURATION_PART.sub("", words).strip() or None in units or not 0 < width_us < 2**62:
        raise WrongOption(
            f"option {GROUP_BY}: {part!r} has no duration like '1 minute' or '1 hour 30 minutes'; the units are "
            f"{', '.join(_UNIT_US)}"
        )
    return width_us


def _split_alias(part: str) -> tuple[str, str | None]:
    item = _ITEM.fullmatch(part)
    if item is None:
        raise WrongOption(f"options {AGGREGATE} and {GROUP_BY}: an item before, between or after commas is empty")
    return item["what"].strip(), None if item["alias"] is None else _unquoted(item["alias"])


def _column(option: str, given: str, columns: Columns) -> str:
    """Return the column of that name, case-insensitive as everywhere in Spark."""
    name = _unquoted(given)
    by_lower = {known.lower(): known for known in columns}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    remedy = f"did you mean {by_lower[nearest[0]]}?" if nearest else f"the columns are {', '.join(columns)}"
    raise WrongOption(f"option {option}: there is no column {name!r}; {remedy}")


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if len(name) > 2 and name[0] == name[-1] == "`" else name


def _sql(given: types.DataType) -> str:
    return str(given.simpleString()).upper()
