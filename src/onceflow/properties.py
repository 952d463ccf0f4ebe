"""Parser of Java's properties syntax, used by Kafka's `server.properties` (java.util.Properties.load).

A line is `name=value`, `name: value` or `name value`; spaces around the separator are ignored; `#` and `!` start a
comment. A backslash at the end of a line continues it, without the next line's leading spaces. Elsewhere a backslash
starts one of `\\t \\n \\r \\f \\uXXXX`, or escapes the next character.
"""

import re
from collections.abc import Iterator

_NAME_END = re.compile(r"(?<!\\)(?:\\\\)*[=:\s]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the values by name; the last one of a repeated name, as in Java."""
    return dict(_entry(line) for line in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines with their continuations, without comments and empty lines."""
    unfinished: str | None = None
    for line in re.split(r"\r\n|\r|\n", text):
        rest = line.lstrip(" \t\f")
        if unfinished is None and (not rest or rest[0] in "#!"):
            continue
        whole = (unfinished or "") + rest
        backslashes = len(whole) - len(whole.rstrip("\\"))
        unfinished = whole[:-1] if backslashes % 2 else None
        if unfinished is None:
            yield whole
    if unfinished is not None:
        yield unfinished


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
