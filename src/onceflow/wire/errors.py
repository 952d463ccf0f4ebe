"""What can be wrong with bytes, one class per thing that a caller can react to."""

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
]


class WireError(OnceflowError):
    """Bytes that do not say what Kafka's protocol allows at that place."""


class MalformedFrame(WireError):
    """A request or response cannot be read: its connection is of no further use."""


class MalformedBatch(WireError):
    """A record batch breaks its own format: lengths, varints or compressed data do not add up."""


class CorruptBatch(WireError):
    """A record batch is not what its header says: magic, length, CRC-32C or record count (CORRUPT_MESSAGE)."""


class DecompressionTooLarge(WireError):
    """A compressed batch would unpack to more bytes than the caller allows."""


class UnsupportedVersion(WireError):
    """A request names an API or a version that `onceflow.wire.apis` does not serve.

    Kafka closes the connection, with one exception: an ApiVersions request (key 18) above the maximum is answered
    by `frames.encode_unsupported_api_versions` (KIP-511).
    """

    def __init__(self, api_key: int, version: int, *, correlation_id: int = 0) -> None:
        super().__init__(f"API key {api_key} version {version} is not served here; ApiVersions lists what is")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
