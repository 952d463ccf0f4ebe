"""Conversion of events to bytes and back: `serializer.class`, `key.serializer.class`, decoders of streams."""

from typing import Any, Protocol

from onceflow.client.errors import ClientError


class EncodingFailed(ClientError):
    """The encoder does not support an event's type."""


class Encoder(Protocol):
    """`kafka.serializer.Encoder`: one method. It is never called with None, which stays a null."""

    def to_message(self, event: Any) -> bytes:
        """Return the bytes to send for `event`."""
        ...


class Decoder(Protocol):
    """`kafka.serializer.Decoder`: one method. It is never called with a null, which stays None."""

    def from_bytes(self, data: bytes) -> Any:
        """Return the stream's value for `data`."""
        ...


class DefaultEncoder:
    """Encoder of bytes, unchanged. Raises EncodingFailed for other types."""

    def to_message(self, event: Any) -> bytes:
        if isinstance(event, bytes | bytearray | memoryview):
            return bytes(event)
        raise EncodingFailed(
            f"DefaultEncoder requires bytes, not {type(event).__name__}; encode the event, or set serializer.class to "
            "StringEncoder or to an encoder of your own"
        )


class StringEncoder:
    """Encoder of text as UTF-8 and of integers as decimal text. Raises EncodingFailed for other types."""

    def to_message(self, event: Any) -> bytes:
        if isinstance(event, str | int) and not isinstance(event, bool):
            return str(event).encode()
        raise EncodingFailed(
            f"StringEncoder requires str or int, not {type(event).__name__}; set serializer.class to "
            "DefaultEncoder for bytes, or to an encoder of your own"
        )


class DefaultDecoder:
    """Decoder that returns the bytes unchanged."""

    def from_bytes(self, data: bytes) -> bytes:
        return data


class StringDecoder:
    """Decoder of UTF-8. Raises UnicodeDecodeError for other bytes."""

    def from_bytes(self, data: bytes) -> str:
        return data.decode()
