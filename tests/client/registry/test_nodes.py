"""Values of the nodes that consumers write and read."""

import json
import re

import pytest

from onceflow.client.registry import nodes
from onceflow.client.registry.nodes import Registration, decode_registration
from onceflow.client.topic_filter import Blacklist, Whitelist
from onceflow.zookeeper.nodes import BrokerNode, DamagedNode, decode


def test_registration_is_kafkas() -> None:
    value = Registration({"clicks": 2}).encode()
    assert re.fullmatch(
        rb'\{"version":1,"subscription":\{"clicks":2\},"pattern":"static","timestamp":"\d{13}"\}', value
    )
    assert decode_registration("/", value) == Registration({"clicks": 2})


@pytest.mark.parametrize(
    ("topic_filter", "pattern"), [(Whitelist(r"clicks,a\..*"), "white_list"), (Blacklist("views"), "black_list")]
)
def test_a_filters_registration_has_its_expression(topic_filter: Whitelist | Blacklist, pattern: str) -> None:
    value = Registration({}, topic_filter, 3).encode()
    stored = json.loads(value)
    assert (stored["subscription"], stored["pattern"]) == ({topic_filter.expression: 3}, pattern)
    existing = ["clicks", "a.b", "ab", "views", "__consumer_offsets"]
    allowed = ["clicks", "a.b"] if pattern == "white_list" else ["clicks", "a.b", "ab"]
    assert decode_registration("/", value).streams_by_topic(existing) == dict.fromkeys(allowed, 3)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"{}",
        b'{"subscription":{"t":"x"},"pattern":"static"}',
        b'{"subscription":{},"pattern":"\xff"}',
        b'{"subscription":{},"pattern":"static","other":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
    ids=["empty", "no text", "no fields", "no number", "no text in a field", "nested"],
)
def test_a_damaged_registration_is_named(value: bytes) -> None:
    with pytest.raises(DamagedNode, match=r"/consumers/g/ids/c in ZooKeeper holds"):
        decode_registration("/consumers/g/ids/c", value)


@pytest.mark.parametrize(
    ("node", "protocol", "addresses"),
    [
        ('{"jmx_port":-1,"timestamp":"1","host":"a","version":1,"port":9092}', "PLAINTEXT", ["a:9092"]),
        ('{"jmx_port":-1,"timestamp":"1","host":"a","version":1,"port":9092}', "SSL", []),
        ('{"endpoints":["PLAINTEXT://a:1","SSL://[::1]:2"],"host":"a","version":2,"port":1}', "SSL", ["[::1]:2"]),
        (
            '{"listener_security_protocol_map":{"IN":"PLAINTEXT","OUT":"SASL_SSL"},"port":-1,'  # noqa: ISC004
            '"endpoints":["IN://a:1","OUT://b:2"],"host":null,"version":5}',
            "SASL_SSL",
            ["b:2"],
        ),
    ],
)
def test_brokers_of_all_versions_are_found(node: str, protocol: str, addresses: list[str]) -> None:
    assert nodes.addresses(decode(BrokerNode, "/", node.encode()), protocol) == addresses


def test_consumer_ids_have_kafkas_form() -> None:
    assert re.fullmatch(r"group_.+-\d{13}-[0-9a-f]{8}", nodes.new_consumer_id("group"))
