"""Produced records go from the connection's buffer to the file: nothing of their size is allocated."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers import produce as produce_handler
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.log.config import LogConfig
from onceflow.log.disk import RealDisk
from onceflow.wire import produce
from onceflow.wire.frames import read_request_header
from tests.broker.driven_broker import DrivenBroker
from tests.broker.raw_client import batch_of, connected

MIB = 1024 * 1024


class KeptReply:
    """Receives the response to a request without a connection."""

    is_open = True
    pieces: Any = None
    connection = "test"

    def send(self, pieces: Any) -> None:
        self.pieces = pieces


@pytest.mark.parametrize("acks", [1, -1])
def test_produced_records_are_not_copied(tmp_path: Path, acks: int) -> None:
    batch = batch_of(b"x" * 20 * MIB)
    log = LogConfig(message_bytes_max=64 * MIB)
    with DrivenBroker(tmp_path / "data", disk=RealDisk(), log=log) as broker, connected(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", 0, batch_of(b"warm"))
        frame = memoryview(bytearray(client.produce_request("t", 0, batch, acks=acks)))[4:]
        reply = KeptReply()

        def peak_bytes(node: Node) -> int:
            request = Request(read_request_header(frame), frame, reply, "test")  # type: ignore[arg-type]
            tracemalloc.start()
            try:
                produce_handler.handle(node, request)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        assert broker.call(peak_bytes) < MIB
        assert client.produce("t", 0, batch_of(b"behind it")).base_offset == 2
    _id, topics, _throttle_ms = produce.parse_response(9, reply.pieces[0][4:])
    assert (topics[0][1][0].error_code, topics[0][1][0].base_offset) == (0, 1)
