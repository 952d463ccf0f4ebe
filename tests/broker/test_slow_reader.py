"""A response that fills the socket many times is whole, and the loop is registered once for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceflow.broker.node import Node
from onceflow.log.config import LogConfig
from onceflow.log.disk import RealDisk
from tests.broker.driven_broker import DrivenBroker
from tests.broker.raw_client import batch_of, connected

MIB = 1024 * 1024
RESPONSE_BYTES = 16 * MIB


def test_a_response_larger_than_the_socket_buffer(tmp_path: Path) -> None:
    added: list[int] = []
    woken: list[int] = []

    def count(_node: Node) -> None:
        loop = asyncio.get_running_loop()
        add_writer = loop.add_writer

        def counted(descriptor: Any, callback: Callable[[], object]) -> None:
            def wake() -> None:
                woken.append(descriptor)
                callback()

            added.append(descriptor)
            add_writer(descriptor, wake)

        loop.add_writer = counted  # type: ignore[method-assign, assignment]

    log = LogConfig(message_bytes_max=2 * RESPONSE_BYTES)
    with DrivenBroker(tmp_path / "data", disk=RealDisk(), log=log) as broker, connected(broker.bootstrap) as client:
        client.create_topic("t")
        batch = batch_of(*(bytes([number]) * MIB for number in range(16)))
        assert client.produce("t", 0, batch).base_offset == 0
        broker.call(count)
        (fetched,) = client.fetch([("t", 0, 0)], max_bytes=2 * RESPONSE_BYTES)
        assert bytes(fetched.records[61:]) == bytes(batch[61:])
        assert len(woken) >= 8
        assert len(added) <= len(woken) / 4
        assert client.produce("t", 0, batch_of(b"behind it")).base_offset == 16
