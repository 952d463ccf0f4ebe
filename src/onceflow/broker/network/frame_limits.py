"""Sizes that a request's frame may announce, by its API."""

from onceflow.broker.config import BrokerConfig
from onceflow.wire import apis

FRAME_BYTES_MIN = 8

_GROUP_REQUESTS = frozenset((apis.JOIN_GROUP, apis.SYNC_GROUP, apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT))


def size_refusal(config: BrokerConfig, frame: memoryview, size_bytes: int) -> str | None:
    """Return why the frame that begins so may not have this size; None if it may."""
    api_key = int.from_bytes(frame[:2], "big") if len(frame) >= 2 else apis.PRODUCE
    if api_key == apis.PRODUCE:
        what, largest = "a Produce request", config.produce_request_bytes_max
    elif api_key in _GROUP_REQUESTS:
        what, largest = "a consumer group request", config.group_request_bytes_max
    else:
        what, largest = "a request of this kind", config.other_request_bytes_max
    if FRAME_BYTES_MIN <= size_bytes <= largest:
        return None
    return f"a frame of {size_bytes} bytes, {what} has {FRAME_BYTES_MIN} to {largest}"
