"""Parsing of HOST:PORT."""

import pytest

from onceflow.client.addresses import Address, InvalidAddress, parse_address, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        (" kafka.example:1 ", Address("kafka.example", 1)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_address_round_trip(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":9092", "host:x", "host:65536", "host:-1", "::1:9092", "a://b:1"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidAddress, match=r"HOST:PORT|a port is a number"):
        parse_address(text)


def test_bootstrap_is_a_list() -> None:
    assert parse_bootstrap("a:1, b:2") == [Address("a", 1), Address("b", 2)]
    with pytest.raises(InvalidAddress):
        parse_bootstrap("a:1,")
