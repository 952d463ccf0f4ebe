"""Lines of a file, plain or gzip, as a stream: one line is held in memory, and none is longer than 1 MiB."""

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
    """A file to be replayed is not there, or is damaged."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot become an event: where it begins, why, and (at most 4,096 characters of) its text."""

    file: str
    line: int
    reason: str
    text: str


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading bytes; what begins as gzip is unpacked. Raises `FileUnreadable`.

    A replay reads the beginning more than once, and a pipe would lose what was read before; so pipes are refused.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise FileUnreadable(
                f"{path} is no regular file and may be readable only once, replay reads it more often: "
                f"{Remedy.WRITE_TO_FILE}"
            )
        file = path.open("rb")
        magic = file.peek(2)[:2]
    except OSError as error:
        raise FileUnreadable(f"cannot read {path}: {error.strerror or error}") from error
    if magic != _GZIP_MAGIC:
        return file
    return cast(BinaryIO, _OwningGzip(fileobj=file))


class _OwningGzip(gzip.GzipFile):
    """A gzip stream that closes the file below it too, which GzipFile leaves open."""

    def __init__(self, fileobj: io.BufferedReader) -> None:
        self._below = fileobj
        super().__init__(fileobj=fileobj, mode="rb")

    def close(self) -> None:
        super().close()
        self._below.close()


def lines_of(path: Path) -> Iterator[tuple[int, str] | Rejected]:
    """Yield (number from 1, text without its line end) of each line; `Rejected` for one too long or not UTF-8.

    A byte order mark at the start is no part of the first line. Raises `FileUnreadable` where the file ends in the
    middle of its gzip stream or is damaged: every line before that place has been handed out.
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
    """Yield each line; of one that is too long only its first part, of `LINE_BYTES_MAX` + 1 bytes."""
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
    """Return as much of a rejected row as the rejects file keeps; bytes that are not UTF-8 as backslash escapes."""
    if isinstance(text, bytes):
        text = text[: REJECT_CHARACTERS_MAX * 4].decode(errors="backslashreplace")
    return text[:REJECT_CHARACTERS_MAX].rstrip("\r\n")
