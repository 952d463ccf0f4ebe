"""The body of `POST /events`: decompressed as it arrives, within a limit, and split into events.

An event stays the bytes of its sender, so that no digit of a number is lost.
"""

import zlib

import msgspec

from onceflow.errors import OnceflowError

_GZIP = 16 + zlib.MAX_WBITS


class BodyRefused(OnceflowError):
    """Body that is not read further, with the HTTP status of the response."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Body:
    """Body of one request. It never holds more than `bytes_max`, however far its content expands."""

    def __init__(self, encoding: str, bytes_max: int) -> None:
        if encoding not in ("", "identity", "gzip"):
            raise BodyRefused("unknown-encoding", 415)
        self._inflate = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
        self._bytes_max = bytes_max
        self._content = bytearray()

    def __len__(self) -> int:
        return len(self._content)

    def add(self, chunk: bytes) -> None:
        """Add the next bytes of the request. Raises BodyRefused."""
        if self._inflate is None:
            self._content += chunk[: self._bytes_max + 1]
        else:
            try:
                # One byte beyond the limit shows that there are more.
                self._content += self._inflate.decompress(chunk, self._bytes_max + 1 - len(self._content))
            except zlib.error as error:
                raise BodyRefused("not-gzip", 400) from error
        if len(self._content) > self._bytes_max:
            raise BodyRefused("body-too-large", 413)

    def content(self) -> bytes:
        """Return the whole body. Raises BodyRefused if it is cut short."""
        if self._inflate is not None and (not self._inflate.eof or self._inflate.unused_data):
            raise BodyRefused("not-gzip", 400)
        return bytes(self._content)


def split(body: bytes, events_max: int) -> list[bytes]:
    """Return the events of a body: a JSON list, one JSON object, or lines of JSON (NDJSON). Raises BodyRefused."""
    text = body.strip(b" \t\r\n")
    if not text:
        raise BodyRefused("no-events", 400)
    if text.startswith(b"["):
        try:
            events = [bytes(raw) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]
        except (msgspec.DecodeError, RecursionError) as error:
            raise BodyRefused("not-json", 400) from error
    else:
        events = [text] if _is_one(text) else [line for line in text.split(b"\n") if line.strip()]
    if len(events) > events_max:
        raise BodyRefused("too-many-events", 413)
    return events


def _is_one(text: bytes) -> bool:
    """Return whether the text is one JSON value, perhaps of several lines."""
    if b"\n" not in text:
        return True
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
