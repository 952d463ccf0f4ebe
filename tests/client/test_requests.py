"""Requests of the client in every version that it may negotiate."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from onceflow.client import requests
from onceflow.client.requests import Build, ProducerIdentity
from onceflow.wire import apis

PRODUCER = ProducerIdentity("job", 7, 1)
REQUESTS: Mapping[str, tuple[int, int, Build]] = {
    "metadata": (apis.METADATA, requests.METADATA_VERSION_MIN, requests.metadata(["t"])),
    "list_offsets": (apis.LIST_OFFSETS, requests.LIST_OFFSETS_VERSION_MIN, requests.list_offsets("t", {0: 5}, 1)),
    "create_topic": (apis.CREATE_TOPICS, 4, requests.create_topic("t", 1, -1, {"a": "b"}, 1000)),
    "delete_topic": (apis.DELETE_TOPICS, 1, requests.delete_topic("t", 1000)),
    "find_coordinator": (apis.FIND_COORDINATOR, requests.FIND_COORDINATOR_VERSION_MIN, requests.find_coordinator("g")),
    "offset_fetch": (apis.OFFSET_FETCH, requests.OFFSET_FETCH_VERSION_MIN, requests.offset_fetch("g", "t", [0])),
    "all_offsets": (apis.OFFSET_FETCH, requests.OFFSET_FETCH_VERSION_MIN, requests.all_offsets("g")),
    "offset_commit": (apis.OFFSET_COMMIT, 2, requests.offset_commit("g", "t", {0: 5})),
    "init_producer_id": (apis.INIT_PRODUCER_ID, 0, requests.init_producer_id(PRODUCER, 1000)),
    "add_partitions": (apis.ADD_PARTITIONS_TO_TXN, 0, requests.add_partitions_to_txn(PRODUCER, [("t", 0), ("t", 1)])),
    "add_offsets": (apis.ADD_OFFSETS_TO_TXN, 0, requests.add_offsets_to_txn(PRODUCER, "g")),
    "txn_offset_commit": (apis.TXN_OFFSET_COMMIT, 0, requests.txn_offset_commit(PRODUCER, "g", "t", {0: 5})),
    "end_txn": (apis.END_TXN, 0, requests.end_txn(PRODUCER, commit=True)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_fit_every_version(name: str) -> None:
    """Each version can be built, and each field that a builder names is in one of them: a typo would be left out."""
    api_key, version_min, build = REQUESTS[name]
    api = apis.APIS[api_key]
    used: set[str] = set()
    for version in range(max(version_min, api.version_min), api.version_max + 1):
        used |= set(fields_of(build(version)))
    assert set(names_in(inspect.getclosurevars(build).nonlocals["values"])) <= used


def fields_of(message: Any) -> Iterator[str]:
    for field in fields(message):
        yield field.name
        value = getattr(message, field.name)
        for element in value if isinstance(value, tuple) else ():
            if is_dataclass(element):
                yield from fields_of(element)


def names_in(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield name
        for element in value if isinstance(value, list) else ():
            if isinstance(element, Mapping):
                yield from names_in(element)
