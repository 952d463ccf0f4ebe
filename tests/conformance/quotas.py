"""Invalid requests and edge cases about quotas."""

from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.conformance.side import Side

USER, CLIENT_ID, IP = "user", "client-id", "ip"


def altering(*entries: tuple[list[tuple[str, str | None]], list[tuple[str, float | None]]]) -> dict[str, Any]:
    """Return an AlterClientQuotas of (entity, [(key, value or None to remove)])."""
    return {
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in types],
                "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
            }
            for types, ops in entries
        ],
        "validate_only": False,
    }


def alter(*entries: tuple[list[tuple[str, str | None]], list[tuple[str, float | None]]]) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        for version in (0, 1):
            side.ask(apis.ALTER_CLIENT_QUOTAS, version, **altering(*entries))

    return case


def describe(*components: tuple[str, int, str | None]) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        asked = [
            {"entity_type": kind, "match_type": match_type, "match": match} for kind, match_type, match in components
        ]
        for strict in (False, True):
            side.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=asked, strict=strict)

    return case


def several_entities(side: Side) -> None:
    """Set quotas of a user, the same user with client ids, and describe each selection."""
    user = side.topic
    entities: list[list[tuple[str, str | None]]] = [
        [(USER, user)], [(USER, user), (CLIENT_ID, "quota-c")], [(USER, user), (CLIENT_ID, None)],
    ]  # fmt: skip
    for number, types in enumerate(entities):
        side.ask(apis.ALTER_CLIENT_QUOTAS, 1, **altering((types, [("consumer_byte_rate", 1e9 + number)])))
    mine = {"entity_type": USER, "match_type": 0, "match": user}
    side.until(
        lambda response: len(response.entries) == len(entities),
        apis.DESCRIBE_CLIENT_QUOTAS, 1, components=[mine], strict=False,
    )  # fmt: skip
    for more in ([], [(0, "quota-c")], [(1, None)], [(2, None)]):
        clients = [{"entity_type": CLIENT_ID, "match_type": kind, "match": match} for kind, match in more]
        for strict in (False, True):
            side.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=[mine, *clients], strict=strict)
    for types in entities:
        removal: list[tuple[str, float | None]] = [("consumer_byte_rate", None), ("producer_byte_rate", None)]
        side.ask(apis.ALTER_CLIENT_QUOTAS, 1, **altering((types, removal)))


RATE: list[tuple[str, float | None]] = [("producer_byte_rate", 1e12)]
CASES: dict[str, Callable[[Side], None]] = {
    "quotas of several entities": several_entities,
    "quotas of no entity": alter(([], RATE)),
    "quotas of an unknown type": alter(([("role", "x")], RATE)),
    "quotas of an empty name": alter(([(USER, "")], RATE), ([(CLIENT_ID, "")], RATE)),
    "quotas under an unknown key": alter(([(USER, "quota-k")], [("bytes", 1.0)])),
    "quotas of zero and less": alter(
        ([(USER, "quota-z")], [("producer_byte_rate", -1.0)]),
        ([(CLIENT_ID, "quota-z")], [("request_percentage", -1.0)]),
    ),
    "quotas of addresses": alter(([(IP, "10.9.8.7")], [("connection_creation_rate", 5.0)])),
    "remove quotas of addresses": alter(([(IP, "10.9.8.7")], [("connection_creation_rate", None)])),
    "quotas of an address and a user": alter(([(IP, "10.9.8.7"), (USER, "quota-i")], RATE)),
    "quotas of bytes for an address": alter(([(IP, "10.9.8.7")], RATE)),
    "quotas of connections for a user": alter(([(USER, "quota-i")], [("connection_creation_rate", 5.0)])),
    "quotas of connections that are fractions": alter(([(IP, "10.9.8.7")], [("connection_creation_rate", 5.5)])),
    "quotas of too many connections": alter(([(IP, "10.9.8.7")], [("connection_creation_rate", 1e12)])),
    "quotas of mutations": alter(
        ([(USER, "quota-m")], [("controller_mutation_rate", 1e9)]),
        ([(USER, "quota-n")], [("controller_mutation_rate", 0.5)]),
        ([(USER, "quota-m")], [("controller_mutation_rate", None)]),
    ),
    "remove quotas of mutations": alter(
        ([(USER, "quota-m")], [("controller_mutation_rate", None)]),
        ([(USER, "quota-n")], [("controller_mutation_rate", None)]),
    ),
    "quotas that are fractions": alter(([(USER, "quota-f")], [("consumer_byte_rate", 1.5)])),
    "quotas too large": alter(([(USER, "quota-l")], [("consumer_byte_rate", 1e30)])),
    "quotas twice under a key": alter(([(USER, "quota-t")], [*RATE, *RATE])),
    "quotas of valid and invalid entities": alter(([(USER, "quota-v")], []), ([("role", "x")], RATE)),
    "remove quotas that do not exist": alter(([(USER, "quota-n")], [("producer_byte_rate", None)])),
    "remove quotas under an unknown key": alter(([(USER, "quota-n")], [("bytes", None)])),
    "describe quotas of an empty type": describe(("", 0, "a")),
    "describe quotas of an unknown type": describe(("role", 0, "a")),
    "describe quotas without a name": describe((USER, 0, None)),
    "describe default quotas with a name": describe((USER, 1, "a")),
    "describe specified quotas with a name": describe((USER, 2, "a")),
    "describe quotas by an unknown match": describe((USER, 9, None)),
    "describe quotas twice": describe((USER, 0, "a"), (USER, 1, None)),
    "describe quotas of users and addresses": describe((USER, 0, "a"), (IP, 1, None)),
    "describe quotas of addresses": describe((IP, 2, None)),
}
