"""Errors of bytes: one class for each that a caller can react to."""

from kio.schema.errors import ErrorCode

from onceflow.errors import OnceflowError

__all__ = [
    "CorruptBatch",
    "DecompressionTooLarge",
    "ErrorCode",
    "MalformedBatch",
    "MalformedFrame",
    "UnsupportedVersion",
    "WireError",
    "error_name",
]


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, such as UNKNOWN_TOPIC_OR_PARTITION, or the number of an unknown one."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"


class WireError(OnceflowError):
    """The bytes violate Kafka's protocol."""


class MalformedFrame(WireError):
    """A request or response cannot be read, so its connection cannot be used any more."""


class MalformedBatch(WireError):
    """A record batch violates its format: lengths, varints or compressed data are inconsistent."""


class CorruptBatch(WireError):
    """A record batch does not match its header: magic, length, CRC-32C or record count (CORRUPT_MESSAGE)."""


class DecompressionTooLarge(WireError):
    """The uncompressed size of a batch exceeds the caller's limit."""


class UnsupportedVersion(WireError):
    """A request has an API or a version that `onceflow.wire.apis` does not serve.

    Kafka closes the connection, with one exception: the response to an ApiVersions request (key 18) above the maximum
    is `frames.encode_unsupported_api_versions` (KIP-511).
    """

    def __init__(self, api_key: int, version: int, *, correlation_id: int = 0) -> None:
        super().__init__(f"API key {api_key} version {version} is not served here; ApiVersions lists what is")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
