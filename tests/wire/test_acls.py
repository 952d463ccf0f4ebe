"""Filters of ACLs, and the codes in them."""

from typing import Any

import pytest

from onceflow.wire.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    PatternType,
    ResourceType,
)

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def binding(name: str, pattern_type: PatternType, resource_type: ResourceType = ResourceType.TOPIC) -> AclBinding:
    pattern = AclPattern(resource_type, name, pattern_type)
    return AclBinding(pattern, "User:ada", "*", AclOperation.READ, AclPermission.ALLOW)


NAMES = (("clicks", LITERAL), ("clicks", PREFIXED), ("cli", PREFIXED), ("*", LITERAL), ("views", LITERAL))


@pytest.mark.parametrize(
    ("pattern_type", "name", "matching"),
    [
        (LITERAL, "clicks", [("clicks", LITERAL)]),
        (PREFIXED, "clicks", [("clicks", PREFIXED)]),
        (PatternType.ANY, "clicks", [("clicks", LITERAL), ("clicks", PREFIXED)]),
        (PatternType.MATCH, "clicks", [("clicks", LITERAL), ("clicks", PREFIXED), ("cli", PREFIXED), ("*", LITERAL)]),
        (PatternType.MATCH, "cli", [("cli", PREFIXED), ("*", LITERAL)]),
        (LITERAL, "*", [("*", LITERAL)]),
        (LITERAL, None, [("clicks", LITERAL), ("*", LITERAL), ("views", LITERAL)]),
        (PatternType.ANY, None, list(NAMES)),
    ],
)
def test_patterns_selected_by_a_filter(
    pattern_type: PatternType, name: str | None, matching: list[tuple[str, PatternType]]
) -> None:
    wanted = AclFilter(ResourceType.TOPIC, name, pattern_type)
    assert [of for of in NAMES if wanted.matches(binding(*of))] == matching
    exact = wanted.exact_patterns
    if exact is not None:
        assert [of for of in NAMES if binding(*of).pattern in exact] == matching


@pytest.mark.parametrize(
    "other",
    [
        {"principal": "User:bob"},
        {"host": "10.0.0.1"},
        {"operation": AclOperation.ALL},
        {"permission": AclPermission.DENY},
        {"resource_type": ResourceType.GROUP},
    ],
)
def test_other_entries_are_not_selected(other: dict[str, Any]) -> None:
    of = binding("clicks", LITERAL)
    assert AclFilter(principal="User:ada", host="*", operation=of.operation, permission=of.permission).matches(of)
    assert not AclFilter()._replace(**other).matches(of)


def test_codes_of_a_later_release_are_unknown() -> None:
    assert AclOperation(77) == AclOperation.UNKNOWN
    assert AclFilter(operation=AclOperation(77)).unknown_part == "entryFilter"
    assert AclFilter(pattern_type=PatternType(77)).unknown_part == "patternFilter"
    assert AclFilter().unknown_part is None


def test_names_as_users_write_them() -> None:
    assert {AclOperation.of(word) for word in ("DescribeConfigs", "describe-configs", "DESCRIBE_CONFIGS")} == {
        AclOperation.DESCRIBE_CONFIGS
    }
    assert ResourceType.TRANSACTIONAL_ID.spelled == "TransactionalId"
    with pytest.raises(KeyError):
        AclOperation.of("reed")
