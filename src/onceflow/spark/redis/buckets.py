"""Rows of bucket targets as arguments of the scripts: grouped by the key that they change.

A row's key is named after its index, so the number of keys is not known before. The keys of a script's rows are passed
as KEYS, too: a cluster refuses a script while a slot moves and only a part of its keys is there.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from onceflow.spark.errors import IncompatibleData
from onceflow.spark.redis.targets import Index

DIGITS_MAX = 15
"""Digits of times and of numbers of events, which Lua's doubles have exactly."""
_NUMBER = rb"(0|[1-9]\d{,14})"
_INTERVAL = re.compile(rb",".join([_NUMBER] * 4))
_START = re.compile(_NUMBER)

Argument = str | bytes | int
Row = tuple[str, bytes, int, bytes | None]
"""Target, field, amount, value."""


def index_arguments(indexes: Sequence[Index], numbers: Mapping[str, int]) -> list[Argument]:
    """Return the arguments for the indexes; `numbers` are those of the sink's own keys among KEYS, 0 for none."""
    arguments: list[Argument] = [len(indexes)]
    for index in indexes:
        retention = "" if index.retention_ms is None else index.retention_ms
        late = 0 if index.late_key is None else numbers[index.late_key]
        arguments += (index.kind, numbers[index.key], retention, index.width_ms, index.limit)
        arguments += (late, index.late_name or "", index.counters)
    return arguments


def row_arguments(indexes: Sequence[Index], rows: Iterable[Row]) -> tuple[list[Argument], list[bytes]]:
    """Return the arguments for the rows, and the keys that they change. Raises IncompatibleData.

    Each group of rows: the number of its index, the member, the number of rows, then names and amounts, or values.
    """
    numbers = {index.target: number for number, index in enumerate(indexes) if index.target is not None}
    groups: dict[tuple[int, bytes], tuple[list[Argument], list[Argument]]] = {}
    for target, field, amount, value in rows:
        number = numbers[target]
        member, name = _place(indexes[number], field, value)
        names, amounts = groups.setdefault((number, member), ([], []))
        names.append(name)
        amounts.append(amount)
    arguments: list[Argument] = [len(groups)]
    for (number, member), (names, amounts) in groups.items():
        has_amounts = indexes[number].kind in ("increment", "ranking")
        arguments += (number + 1, member, len(names), *names, *(amounts if has_amounts else ()))
    return arguments, [indexes[number].key.encode() + b":" + member for number, member in groups]


def _place(index: Index, field: bytes, value: bytes | None) -> tuple[bytes, bytes]:
    """Return the member of the index that a row belongs to, and the name or the value there."""
    if index.kind == "intervals":
        interval = _INTERVAL.fullmatch(value or b"")
        if interval is None or int(interval[1]) > int(interval[2]):
            raise IncompatibleData(
                f"the batch has the value {value!r} for user {_shown(field)} of target {index.target!r}, which is not "
                f"STARTED,ENDED,EVENTS,CLICKS: whole numbers of at most {DIGITS_MAX} digits, STARTED not after ENDED"
            )
        return field, interval[0]
    start, colon, name = field.partition(b":")
    if not colon or _START.fullmatch(start) is None or int(start) % index.width_ms:
        raise IncompatibleData(
            f"the batch has the field {_shown(field)} for target {index.target!r}, which does not begin with a "
            f"bucket's start in ms, a multiple of {index.width_ms}, and a colon"
        )
    return (field, value or b"") if index.kind == "distinct" else (start, name)


def _shown(field: bytes) -> str:
    return repr(field.decode("utf-8", "backslashreplace"))
