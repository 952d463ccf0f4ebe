"""Lines of a file, plain or gzip, as a stream: one line of at most 1 MiB is in memory at a time."""

import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

LINE_BYTES_MAX = 1 << 20
REJECT_CHARACTERS_MAX = 4096
_GZIP_MAGIC = b"\x1f\x8b"


class FileUnreadable(OnceflowError):
    """File to replay that is missing, unreadable or damaged."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Row that cannot be mapped to an event: its start, the reason, and at most 4,096 characters of its text."""

    file: str
    line: int
    reason: str
    text: str


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading bytes and decompress gzip. Raises `FileUnreadable`.

    Pipes are refused: a replay reads the start of the file more than once.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise FileUnreadable(
                f"{path} is not a regular file, and replay reads its input more than once: {Remedy.WRITE_TO_FILE}"
            )
        file = path.open("rb")
        magic = file.peek(2)[:2]
    except OSError as error:
        raise FileUnreadable(f"cannot read {path}: {error.strerror or error}") from error
    if magic != _GZIP_MAGIC:
        return file
    return cast(BinaryIO, _OwningGzip(fileobj=file))


class _OwningGzip(gzip.GzipFile):
    """Gzip stream that also closes the underlying file, which GzipFile leaves open."""

    def __init__(self, fileobj: io.BufferedReader) -> None:
        self._below = fileobj
        super().__init__(fileobj=fileobj, mode="rb")

    def close(self) -> None:
        super().close()
        self._below.close()


def lines_of(path: Path) -> Iterator[tuple[int, str] | Rejected]:
    """Yield (number from 1, text without its line end) of each line; `Rejected` for one too long or not UTF-8.

    A byte order mark at the start is dropped. If the file is damaged or its gzip stream is truncated, all lines before
    that place are yielded, and `FileUnreadable` is raised.
    """
    with open_file(path) as file:
        number = 0
        for line in _pieces(path, file):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                yield Rejected(str(path), number, f"longer than {LINE_BYTES_MAX:,} bytes", excerpt(line))
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError:
                yield Rejected(str(path), number, "not UTF-8", excerpt(line))
                continue
            yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def _pieces(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield each line, cut after `LINE_BYTES_MAX` + 1 bytes."""
    number = 0
    try:
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            yield line
            rest = line
            while not rest.endswith(b"\n") and len(rest) > LINE_BYTES_MAX:
                rest = file.readline(LINE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileUnreadable(
            f"{path} is damaged after line {number} ({error}): the lines before it were read, the rest is lost"
        ) from error


def excerpt(text: bytes | str) -> str:
    """Return the part of a rejected row that the rejects file keeps; invalid UTF-8 becomes backslash escapes."""
    if isinstance(text, bytes):
        text = text[: REJECT_CHARACTERS_MAX * 4].decode(errors="backslashreplace")
    return text[:REJECT_CHARACTERS_MAX].rstrip("\r\n")
