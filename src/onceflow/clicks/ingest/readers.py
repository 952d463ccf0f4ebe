"""Rows of log files (CSV, JSON lines, Apache's combined log) as streams of named texts.

    csv       the first line names the columns; quotes as in RFC 4180, a quoted field may span lines. Columns
              are separated by commas, or by semicolons or tabs if the first line has no comma
    jsonl     one JSON object per line; empty lines are skipped
    combined  Apache's combined log: ip, time, method, path, status, bytes, referrer, agent. The whole line must
              match, closing quotes included, so a truncated line is rejected. "-" stays "-". If a request is not
              "METHOD path HTTP/x", the path is the whole request and the method "-"

Rows are in the file's order. An invalid row is yielded as `Rejected`. `typed_values` gives a row's values their types.
"""

import csv
import re
from collections import deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from onceflow.clicks.ingest.lines import Rejected, excerpt, lines_of
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

COMBINED_FIELDS = ("ip", "time", "method", "path", "status", "bytes", "referrer", "agent")
COMBINED_TIME = "%d/%b/%Y:%H:%M:%S %z"

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_COMBINED = re.compile(rf"(\S+) \S+ \S+ \[([^\]]+)\] {_QUOTED} (\d{{3}}) (\d+|-) {_QUOTED} {_QUOTED}")
_REQUEST = re.compile(r"([A-Z]+) (\S.*) HTTP/[0-9.]+")
_NUMBER_STARTS = b"-0123456789"
_TYPED_NUMBER = re.compile(r"-?(?!(?:[0-9]\.?){19})(0|[1-9][0-9]*)(\.[0-9]+)?")
"""Text that becomes a number: no leading zeros, no exponent (a hash such as 12e4567) and nothing beyond 64 bits."""
_SEPARATORS = ",;\t"
"""Separators of columns; the first one that the header has counts."""
_LOG_MARKS = re.compile(r"[\[\]/(]")
_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


class InputFormat(StrEnum):
    """Format of a file to replay."""

    CSV = "csv"
    JSONL = "jsonl"
    COMBINED = "combined"


class FormatUnknown(OnceflowError):
    """File whose name and first line do not show its format, or with an invalid header."""


class Row(NamedTuple):
    """One row: its start, its text for a rejection, and its fields by name."""

    file: str
    line: int
    text: str
    fields: Mapping[str, str]


def guess_format(path: Path) -> InputFormat:
    """Return the format by the file name's extension (without .gz), or by the first line. Raises `FormatUnknown`."""
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if suffixes and suffixes[-1] in _SUFFIXES:
        return InputFormat(_SUFFIXES[suffixes[-1]])
    first = _first_line(path)
    if _COMBINED.fullmatch(first):
        return InputFormat.COMBINED
    if first.lstrip().startswith("{"):
        return InputFormat.JSONL
    separator = _separator_in(first)
    # A damaged log line may have semicolons and tabs, too.
    if separator == "," or (separator is not None and not _LOG_MARKS.search(first)):
        return InputFormat.CSV
    raise FormatUnknown(
        f"unknown format of {path}, whose first line is {first[:80]!r}: {Remedy.NAME_FORMAT} {'|'.join(InputFormat)}"
    )


def _first_line(path: Path) -> str:
    return next((line[1] for line in lines_of(path) if not isinstance(line, Rejected)), "")


def _separator_in(header: str) -> str | None:
    return next((separator for separator in _SEPARATORS if separator in header), None)


def typed_values(fields: Mapping[str, str]) -> dict[str, str | msgspec.Raw]:
    """Return a row's values for a JSON object.

    A value of JSON lines is the file's own JSON. CSV and combined logs have no types: a value written as a plain number
    is a number, any other is text.
    """
    if isinstance(fields, _Texts):
        return dict(fields.raws)
    return {
        name: msgspec.Raw(text.encode()) if _TYPED_NUMBER.fullmatch(text) else text for name, text in fields.items()
    }


def is_number(value: str | msgspec.Raw | None) -> bool:
    """Return whether a value of `typed_values` is a number."""
    return isinstance(value, msgspec.Raw) and bytes(value)[:1] in _NUMBER_STARTS


def rows_of(path: Path, input_format: InputFormat) -> Iterator[Row | Rejected]:
    """Read one file. Raises `FileUnreadable` and `FormatUnknown`."""
    readers = {InputFormat.CSV: _csv_rows, InputFormat.JSONL: _json_rows, InputFormat.COMBINED: _combined_rows}
    return readers[input_format](path)


def _json_rows(path: Path) -> Iterator[Row | Rejected]:
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    for line in lines_of(path):
        if isinstance(line, Rejected):
            yield line
            continue
        number, text = line
        if not text.strip():
            continue
        try:
            raws = decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            yield Rejected(str(path), number, f"not a JSON object ({error})", excerpt(text))
            continue
        yield Row(str(path), number, text, _Texts(raws))


class _Texts(Mapping[str, str]):
    """Texts of a JSON object's strings and numbers, decoded on access; other values count as absent."""

    def __init__(self, raws: dict[str, msgspec.Raw]) -> None:
        self.raws = raws

    def __getitem__(self, name: str) -> str:
        raw = bytes(self.raws[name])
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str)
        if raw[:1] in _NUMBER_STARTS:
            return raw.decode()
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.raws)

    def __len__(self) -> int:
        return len(self.raws)


def _combined_rows(path: Path) -> Iterator[Row | Rejected]:
    for line in lines_of(path):
        if isinstance(line, Rejected):
            yield line
            continue
        number, text = line
        match = _COMBINED.fullmatch(text)
        if match is None:
            yield Rejected(str(path), number, "not a line of Apache's combined log, or truncated", excerpt(text))
            continue
        ip, time, request, status, size, referrer, agent = match.groups()
        parts = _REQUEST.fullmatch(request)
        method, target = parts.groups() if parts else ("-", request)
        values = (ip, time, method, target, status, size, referrer, agent)
        yield Row(str(path), number, text, dict(zip(COMBINED_FIELDS, values, strict=True)))


def _csv_rows(path: Path) -> Iterator[Row | Rejected]:
    lines = _CsvLines(path)
    reader = csv.reader(lines, delimiter=_separator_in(_first_line(path)) or _SEPARATORS[0], strict=True)
    header: list[str] | None = None
    while True:
        lines.begin_row()
        try:
            values = next(reader)
        except StopIteration:
            yield from lines.take_rejects()
            return
        except csv.Error as error:
            yield from lines.take_rejects()
            yield lines.reject_first_line(str(error))
            continue
        yield from lines.take_rejects()
        if lines.is_damaged:
            yield lines.reject_row("a line inside its quotes is too long or not UTF-8")
        elif header is None:
            header = _checked_header(path, values)
        elif len(values) == len(header):
            yield Row(str(path), lines.row_number, lines.row_text, dict(zip(header, values, strict=True)))
        elif values:
            yield lines.reject_row(f"{len(values)} columns, the header has {len(header)}")


def _checked_header(path: Path, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FormatUnknown(f"the first line of {path} names the column {twice[0]!r} twice: {Remedy.NAME_COLUMNS}")
    return names


class _CsvLines:
    """Input lines of `csv.reader`, with the lines of the current row.

    After a quote that never closes, the reader consumes lines until a field exceeds its limit of 131,072 characters.
    Then only the row's first line is rejected: the others are pushed back and read again as rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = lines_of(path)
        self._pushed: deque[tuple[int, str]] = deque()
        self._row: list[tuple[int, str]] = []
        self._rejects: list[Rejected] = []
        self.is_damaged = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._pushed:
            self._row.append(self._pushed.popleft())
            return self._row[-1][1] + "\n"
        for line in self._lines:
            if not isinstance(line, Rejected):
                self._row.append(line)
                return line[1] + "\n"
            self._rejects.append(line)
            self.is_damaged = self.is_damaged or bool(self._row)
        raise StopIteration

    def begin_row(self) -> None:
        self._row = []
        self.is_damaged = False

    @property
    def row_number(self) -> int:
        return self._row[0][0]

    @property
    def row_text(self) -> str:
        return self._row[0][1] if len(self._row) == 1 else "\n".join(text for _, text in self._row)

    def take_rejects(self) -> list[Rejected]:
        rejects, self._rejects = self._rejects, []
        return rejects

    def reject_row(self, reason: str) -> Rejected:
        return Rejected(str(self._path), self.row_number, reason, excerpt(self.row_text))

    def reject_first_line(self, reason: str) -> Rejected:
        (number, text), *rest = self._row
        self._pushed.extendleft(reversed(rest))
        return Rejected(str(self._path), number, f"not CSV ({reason})", excerpt(text))
