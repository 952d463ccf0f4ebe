"""What all answers about groups that are made in slices have in common."""

from collections.abc import Callable

from onceflow.broker.handlers.sliced_responses import Send
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.wire.errors import ErrorCode

NO_TAGS = b"\x00"


def tags_of(request: Request) -> bytes:
    """The empty section of tagged fields that a flexible version has behind each of its parts."""
    return NO_TAGS if request.version >= request.header.api.flexible_from else b""


def when_durable(node: Node, refuse: Callable[[ErrorCode], None]) -> Callable[[Send], None]:
    """Sends an answer once all that the coordinator knows at that time is durable; or refuses with the error."""

    def wait(send: Send) -> None:
        node.group_requests.settle_in_time(lambda error_code: refuse(error_code) if error_code else send())

    return wait
