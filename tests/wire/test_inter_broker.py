"""Requests between brokers: the bytes of Apache Kafka's own classes, and a defined error for every damaged one."""

from typing import Any

import pytest

from onceflow.wire.apis import INTER_BROKER_APIS, Api
from onceflow.wire.errors import MalformedFrame, UnsupportedVersion
from onceflow.wire.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
    request_class,
    response_class,
)
from onceflow.wire.messages import message_of
from onceflow.wire.response_writer import entity_writer
from tests.wire.golden_inter_broker import BODIES, VALUES
from tests.wire.messages import body

APIS_BY_NAME = {api.name: api for api in INTER_BROKER_APIS.values()}


def api_of(name: str) -> Api:
    return APIS_BY_NAME[name.removeprefix("Typed").removesuffix("Request").removesuffix("Response")]


def message(name: str) -> Any:
    api = api_of(name)
    load: Any = request_class if name.endswith("Request") else response_class
    return message_of(load(api.key, api.version_max), VALUES[name])


@pytest.mark.parametrize("name", BODIES)
def test_bytes_are_those_of_kafka(name: str) -> None:
    assert body(message(name)).hex() == BODIES[name].hex()


@pytest.mark.parametrize("name", [name for name in BODIES if name.endswith("Response")])
def test_responses_are_written_from_mappings(name: str) -> None:
    buffer = bytearray()
    entity_class: Any = type(message(name))
    entity_writer(entity_class).write(buffer, VALUES[name])
    assert buffer == BODIES[name]


@pytest.mark.parametrize("name", BODIES)
def test_messages_are_read_back(name: str) -> None:
    api, expected = api_of(name), message(name)
    if name.endswith("Request"):
        frame = memoryview(encode_request(api.key, api.version_max, 9, "1", expected))[4:]
        header = read_request_header(frame, served=INTER_BROKER_APIS)
        assert (header.correlation_id, header.client_id) == (9, "1")
        assert decode_request(frame, header) == expected
    else:
        frame = memoryview(encode_response(api.key, api.version_max, 9, expected))[4:]
        assert decode_response(api.key, api.version_max, frame) == (9, expected)


@pytest.mark.parametrize("name", [name for name in BODIES if name.endswith("Request")])
def test_cut_requests_are_malformed(name: str) -> None:
    api = api_of(name)
    frame = memoryview(encode_request(api.key, api.version_max, 9, "1", message(name)))[4:]
    header = read_request_header(frame, served=INTER_BROKER_APIS)
    for end in range(header.body_position, len(frame)):
        with pytest.raises(MalformedFrame):
            decode_request(frame[:end], header)


def test_clients_cannot_send_inter_broker_requests() -> None:
    frame = memoryview(encode_request(7, 3, 9, "1", message("ControlledShutdownRequest")))[4:]
    with pytest.raises(UnsupportedVersion):
        read_request_header(frame)
