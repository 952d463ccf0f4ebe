"""Reads Java's properties syntax, in which Kafka's `server.properties` is written (java.util.Properties.load).

A line is `name=value`, `name: value` or `name value`; blanks around the separator do not count; `#` and `!` begin a
comment; a backslash at the end continues the line, its next line's leading blanks dropped; elsewhere it stands for
itself in `\\t \\n \\r \\f \\uXXXX` and for the next character in all other cases.
"""

import re
from collections.abc import Iterator

_NAME_END = re.compile(r"(?<!\\)(?:\\\\)*[=:\s]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Name → value; of a repeated name the last one, as in Java."""
    return dict(_entry(line) for line in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with their continuations, without comments and empty lines."""
    begun: str | None = None
    for line in re.split(r"\r\n|\r|\n", text):
        rest = line.lstrip(" \t\f")
        if begun is None and (not rest or rest[0] in "#!"):
            continue
        whole = (begun or "") + rest
        backslashes = len(whole) - len(whole.rstrip("\\"))
        begun = whole[:-1] if backslashes % 2 else None
        if begun is None:
            yield whole
    if begun is not None:
        yield begun


def _entry(line: str) -> tuple[str, str]:
    match = _NAME_END.search(line)
    if match is None:
        return _unescaped(line), ""
    name_end = match.end() - 1
    separator = re.match(r"[ \t\f]*[=:]?[ \t\f]*", line[name_end:])
    assert separator is not None
    return _unescaped(line[:name_end]), _unescaped(line[name_end + separator.end() :])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _CHARACTERS.get(code, code)
