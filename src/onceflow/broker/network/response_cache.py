"""Encoded responses that never change, above all ApiVersions: building one costs more than the rest of the request."""

import struct

from onceflow.broker.network.request import Request

CORRELATION_ID = struct.Struct(">i")
CORRELATION_ID_POSITION = 4
CACHED_BYTES_MAX = 16 * 1024 * 1024


class ResponseCache:
    """Responses by API, version and request body."""

    def __init__(self) -> None:
        self._responses: dict[tuple[int, int, bytes], bytearray] = {}
        self._size_bytes = 0

    def send(self, request: Request) -> bool:
        """Respond from the cache; return False if it does not have this request."""
        response = self._responses.get(cache_key(request))
        if response is None:
            return False
        CORRELATION_ID.pack_into(response, CORRELATION_ID_POSITION, request.header.correlation_id)
        request.reply.send([bytes(response)])
        return True

    def keep(self, key: tuple[int, int, bytes], response: bytes) -> None:
        size_bytes = len(key[2]) + len(response)
        if self._size_bytes + size_bytes > CACHED_BYTES_MAX:
            self.clear()
        self._responses[key] = bytearray(response)
        self._size_bytes += size_bytes

    def clear(self) -> None:
        self._responses.clear()
        self._size_bytes = 0


def cache_key(request: Request) -> tuple[int, int, bytes]:
    header = request.header
    return header.api.key, header.version, bytes(request.frame[header.body_position :])
