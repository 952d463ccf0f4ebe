"""Concurrent operations on one topic: clients see the same as if they came one after another."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.loop.slices import run_in_slices
from onceflow.broker.topics import operations as topic_operations
from onceflow.broker.topics.operations import TopicOperations
from onceflow.log.errors import StorageFailed
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import PoweredBroker, eventually
from tests.broker.handlers.test_admin_apis import SET, TOPIC, add, configured, create, partition_count
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

TIMEOUT = milliseconds(5000)

Operation = tuple[int, int, str, Callable[[str], dict[str, Any]]]
"""(API key, version, the response's array, function of a topic name that returns the request)."""


def new(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}


def changed(name: str, configs: dict[str, Any]) -> dict[str, Any]:
    return {"resources": [{"resource_type": TOPIC, "resource_name": name, "configs": [configs]}]}


BYTES = {"name": "max.message.bytes", "config_operation": SET, "value": "500"}
INDEX = {"name": "segment.ms", "value": "77"}
OPERATIONS: dict[str, Operation] = {
    "create": (apis.CREATE_TOPICS, 7, "topics", lambda name: {"topics": [new(name), new(f"{name}-more")]}),
    "add": (apis.CREATE_PARTITIONS, 3, "results", lambda name: {"topics": [{"name": name, "count": 3}]}),
    "delete": (apis.DELETE_TOPICS, 5, "responses", lambda name: {"topic_names": [name]}),
    "set": (apis.INCREMENTAL_ALTER_CONFIGS, 1, "responses", lambda name: changed(name, BYTES)),
    "replace": (apis.ALTER_CONFIGS, 2, "responses", lambda name: changed(name, INDEX)),
}
MISSING = ErrorCode.unknown_topic_or_partition
OVERTAKEN = {
    # The response reports the state at its time.
    ("create", "delete"): [(MISSING, ErrorCode.none)],
    ("add", "delete"): [(MISSING, ErrorCode.none)],
    # The directories are still being deleted.
    ("delete", "create"): [(ErrorCode.none, ErrorCode.topic_already_exists)],
}
"""Responses if the second operation comes before the end of the first and the result differs from the sequence."""


def ask(client: RawClient, what: str, name: str) -> None:
    api_key, version, _array, fields = OPERATIONS[what]
    values = {**fields(name), "timeout": TIMEOUT, "validate_only": False}
    if api_key == apis.CREATE_PARTITIONS:
        values["topics"][0]["assignments"] = None
    if api_key in (apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS):
        del values["timeout"]
    if api_key == apis.DELETE_TOPICS:
        del values["validate_only"]
    client.send(api_key, version, **values)


def received(client: RawClient, what: str) -> ErrorCode:
    api_key, version, array, _fields = OPERATIONS[what]
    return ErrorCode(getattr(client.receive(api_key, version), array)[0].error_code)


def state(client: RawClient, name: str) -> Any:
    """Return all that a client can see of a topic."""
    count = partition_count(client, name)
    configs = [configured(client, name, config) for config in ("max.message.bytes", "segment.ms")] if count else []
    return count, configs, [client.produce(name, index, batch_of(b"x")).error_code for index in range(3)]


class Held:
    """Creations and syncs that block until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_released = threading.Event()
        monkeypatch.setattr(topic_operations, "run_in_slices", self._run)
        monkeypatch.setattr("onceflow.testing.disk._FaultyFile.sync_data", lambda _file: self._is_released.wait(10))

    def release(self) -> None:
        self._is_released.set()

    def _run(self, work: Iterator[int], done: Callable[[], None], *, failed: Callable[[BaseException], None]) -> None:
        """Block after the first topic, as a request with thousands of topics takes many turns."""
        next(work)

        def rest() -> None:
            if self._is_released.is_set():
                run_in_slices(work, done, failed=failed)
            else:
                asyncio.get_running_loop().call_later(0.001, rest)

        rest()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(OPERATIONS, repeat=2)))
def test_concurrent_operations(
    powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """The result is as if they came one after another, also after a restart."""
    with connected(powered.bootstrap) as one, connected(powered.bootstrap) as two:
        if first != "create":
            create(one, "t")
            create(one, "model")
        in_order = []
        for what in (first, second):
            ask(one, what, "model")
            in_order.append(received(one, what))
        with monkeypatch.context() as slow:
            held = Held(slow)
            ask(one, first, "t")
            with connected(powered.bootstrap) as third:
                third.ask(apis.API_VERSIONS, 0)
                ask(two, second, "t")
                third.ask(apis.API_VERSIONS, 0)
            held.release()
            codes = received(one, first), received(two, second)
        if (first, second) == ("delete", "create"):
            ask(one, "delete", "model")
            received(one, "delete")
        assert codes in [tuple(in_order), *OVERTAKEN.get((first, second), ())]
        expected = state(one, "model")
        assert state(one, "t") == expected
    powered.stop()
    powered.start()
    with connected(powered.bootstrap) as client:
        assert state(client, "t") == expected


def test_failed_operation_does_not_block_others(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that waits for a creation fails alone."""
    with connected(powered.bootstrap) as one, connected(powered.bootstrap) as two, connected(powered.bootstrap) as last:
        with monkeypatch.context() as slow:
            held = Held(slow)
            slow.setattr(TopicOperations, "_delete", lambda *_: 1 / 0)
            ask(one, "create", "t")
            eventually(lambda: powered.call(lambda node: node).topic_operations._is_deciding, "the creation to begin")
            ask(two, "delete", "t")
            eventually(lambda: powered.call(lambda node: node).topic_operations._undecided, "the deletion to wait")
            ask(last, "add", "t")
            eventually(lambda: len(powered.call(lambda node: node).topic_operations._undecided) == 2, "both to wait")
            held.release()
            assert received(one, "create") == ErrorCode.none
            assert received(last, "add") == ErrorCode.none
            assert two.socket.recv(1) == b""
        assert partition_count(one, "t") == 3


def test_unrecorded_partitions_are_not_opened(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other partitions of the same request are recorded and opened."""
    with connected(powered.bootstrap) as client:
        create(client, "t")
        create(client, "u")
        node = powered.call(lambda node: node)
        record = node.metadata.record

        def refuse_first(records: Any, **options: Any) -> None:
            if records[0].topic_id == node.topics.by_name["t"].topic_id:
                raise StorageFailed("full")
            record(records, **options)

        with monkeypatch.context() as full:
            full.setattr(node.metadata, "record", refuse_first)
            assert add(client, ("t", 2, None), ("u", 2, None)) == [("t", 56), ("u", 0)]
        assert node.partitions.count("t") == 1
        assert not Path(powered.data, "t-1").exists()
        assert add(client, ("t", 2, None)) == [("t", 0)]
