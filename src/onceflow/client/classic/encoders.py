"""From events to bytes and back: `serializer.class`, `key.serializer.class` and the decoders of streams."""

from typing import Any, Protocol

from onceflow.client.errors import ClientError


class EncodingFailed(ClientError):
    """An event is of a type that its encoder does not take."""


class Encoder(Protocol):
    """`kafka.serializer.Encoder`: one method. None is never given to it: it stays a null."""

    def to_message(self, event: Any) -> bytes:
        """The bytes that are sent for `event`."""
        ...


class Decoder(Protocol):
    """`kafka.serializer.Decoder`: one method. A null is never given to it: it stays None."""

    def from_bytes(self, data: bytes) -> Any:
        """What the stream yields for `data`."""
        ...


class DefaultEncoder:
    """Bytes as they are; raises EncodingFailed for anything else."""

    def to_message(self, event: Any) -> bytes:
        if isinstance(event, bytes | bytearray | memoryview):
            return bytes(event)
        raise EncodingFailed(
            f"DefaultEncoder takes bytes, {type(event).__name__} was given: encode it, or set serializer.class to "
            "StringEncoder or to an encoder of your own"
        )


class StringEncoder:
    """Text as UTF-8; whole numbers as their decimal text; raises EncodingFailed for anything else."""

    def to_message(self, event: Any) -> bytes:
        if isinstance(event, str | int) and not isinstance(event, bool):
            return str(event).encode()
        raise EncodingFailed(
            f"StringEncoder takes str and int, {type(event).__name__} was given: set serializer.class to "
            "DefaultEncoder for bytes, or to an encoder of your own"
        )


class DefaultDecoder:
    """Bytes as they are."""

    def from_bytes(self, data: bytes) -> bytes:
        return data


class StringDecoder:
    """UTF-8 as text; raises UnicodeDecodeError for what is not."""

    def from_bytes(self, data: bytes) -> str:
        return data.decode()
