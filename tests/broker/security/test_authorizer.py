"""The authorizer against a second, slow statement of Kafka's rules."""

import itertools
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.security.acls import Acls, address_text
from onceflow.broker.security.authorizer import FULL_ACCESS, Authorizer
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.wire.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    PatternType,
    ResourceType,
)

Operation = AclOperation
NAMES = ("*", "a", "ab", "hardcode")
HOSTS = ("10.0.0.1", "10.0.0.2")
OPERATIONS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)
TYPES = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP)
PATTERN_TYPES = st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED))
PRINCIPALS = ("User:ada", "User:*", "User:bob")
BINDINGS = st.builds(
    AclBinding,
    st.builds(AclPattern, st.sampled_from(TYPES), st.sampled_from(NAMES), PATTERN_TYPES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(("*", *HOSTS)),
    st.sampled_from((Operation.ALL, *OPERATIONS)),
    st.sampled_from((AclPermission.ALLOW, AclPermission.DENY)),
)


def acls_of(*bindings: AclBinding) -> Acls:
    acls = Acls()
    for number, binding in enumerate(dict.fromkeys(bindings)):
        acls.add(uuid.UUID(int=number), binding)
    return acls


def authorizer_of(*bindings: AclBinding, super_users: tuple[str, ...] = (), default: bool = False) -> Authorizer:
    return Authorizer(acls_of(*bindings), super_users, allow_if_no_acl=default)


def is_about(binding: AclBinding, resource_type: ResourceType, name: str) -> bool:
    pattern = binding.pattern
    if pattern.resource_type != resource_type:
        return False
    if pattern.pattern_type == PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in ("*", name)


def slowly_allowed(principal: str, host: str, operation: AclOperation, about: list[AclBinding]) -> bool | None:
    """Decide by the ACLs whose pattern matches the resource, as StandardAuthorizer's rules read."""
    if not about:
        return None
    held = [acl for acl in about if acl.principal in (principal, "User:*") and acl.host in (host, "*")]
    if any(acl.permission == AclPermission.DENY and acl.operation in (operation, Operation.ALL) for acl in held):
        return False
    allowed = {acl.operation for acl in held if acl.permission == AclPermission.ALLOW}
    if operation == Operation.DESCRIBE and allowed & {
        Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER,
    }:  # fmt: skip
        return True
    if operation == Operation.DESCRIBE_CONFIGS and Operation.ALTER_CONFIGS in allowed:
        return True
    return bool(allowed & {operation, Operation.ALL})


@given(st.lists(BINDINGS, max_size=8), st.booleans())
def test_decisions_follow_kafkas_rules(bindings: list[AclBinding], default: bool) -> None:
    """Every decision about a few names, hosts and operations is the same."""
    authorizer = authorizer_of(*bindings, default=default)
    for host, operation, name in itertools.product(HOSTS, OPERATIONS, NAMES):
        access = authorizer.access(KafkaPrincipal("User", "ada"), host)
        about = [acl for acl in bindings if is_about(acl, ResourceType.TOPIC, name)]
        expected = slowly_allowed("User:ada", host, operation, about)
        assert access.may(operation, ResourceType.TOPIC, name) == (default if expected is None else expected)


def slowly_allowed_somewhere(
    bindings: list[AclBinding], principal: str, host: str, operation: AclOperation, resource_type: ResourceType
) -> bool:
    """Decide for every possible name: all allowed patterns, and one longer name of each prefix."""
    held = [
        acl
        for acl in bindings
        if acl.pattern.resource_type == resource_type
        and acl.principal in (principal, "User:*")
        and acl.host in (host, "*")
        and acl.operation in (operation, Operation.ALL)
    ]
    denied = [acl.pattern for acl in held if acl.permission == AclPermission.DENY]
    if any(pattern.name == "*" and pattern.pattern_type == PatternType.LITERAL for pattern in denied):
        return False
    for acl in held:
        name, is_prefix = acl.pattern.name, acl.pattern.pattern_type == PatternType.PREFIXED
        if acl.permission == AclPermission.DENY:
            continue
        if name == "*" and not is_prefix:
            return True
        is_denied = any(
            name.startswith(pattern.name)
            if pattern.pattern_type == PatternType.PREFIXED
            else not is_prefix and pattern.name == name
            for pattern in denied
        )
        if not is_denied:
            return True
    return False


@given(st.lists(BINDINGS, max_size=8), st.booleans())
def test_decisions_for_some_resource(bindings: list[AclBinding], default: bool) -> None:
    authorizer = authorizer_of(*bindings, default=default)
    for host, operation in itertools.product(HOSTS, OPERATIONS):
        access = authorizer.access(KafkaPrincipal("User", "ada"), host)
        expected = access.may(operation, ResourceType.TOPIC, "hardcode") or slowly_allowed_somewhere(
            bindings, "User:ada", host, operation, ResourceType.TOPIC
        )
        assert access.may_somewhere(operation, ResourceType.TOPIC) == expected
        assert access.may_somewhere(operation, ResourceType.TOPIC) == expected, "the kept decision is the same"


def test_kept_decisions_end_with_a_change() -> None:
    acls = acls_of(allow(Operation.WRITE))
    access = Authorizer(acls, (), allow_if_no_acl=False).access(KafkaPrincipal("User", "ada"), "10.0.0.1")
    assert access.may_somewhere(Operation.WRITE, ResourceType.TOPIC)
    acls.remove(next(iter(acls.by_id)))
    assert not access.may_somewhere(Operation.WRITE, ResourceType.TOPIC)


@given(st.lists(BINDINGS, max_size=8), st.data())
def test_removed_acls_leave_no_trace(bindings: list[AclBinding], data: st.DataObject) -> None:
    acls = acls_of(*bindings)
    kept = data.draw(st.sets(st.sampled_from(list(acls.by_id)))) if acls.by_id else set()
    for acl_id in [acl_id for acl_id in acls.by_id if acl_id not in kept]:
        acls.remove(acl_id)
    again = Acls()
    for acl_id, binding in acls.by_id.items():
        again.add(acl_id, binding)
    state = {**vars(acls), "changes": 0}
    assert state == {**vars(again), "changes": 0}


@given(st.lists(BINDINGS, max_size=8), st.sampled_from(NAMES), st.sampled_from(PatternType), st.sampled_from(TYPES))
def test_candidate_patterns_include_all_matches(
    bindings: list[AclBinding], name: str, pattern_type: PatternType, resource_type: ResourceType
) -> None:
    acls = acls_of(*bindings)
    wanted = AclFilter(resource_type, name, pattern_type)
    matching = {pattern for pattern in acls.by_pattern if wanted.matches_pattern(pattern)}
    assert matching <= set(acls.patterns(wanted))


def allow(operation: AclOperation, name: str = "a", **changes: Any) -> AclBinding:
    pattern = AclPattern(ResourceType.TOPIC, name, PatternType.LITERAL)
    return AclBinding(pattern, "User:ada", "*", operation, AclPermission.ALLOW)._replace(**changes)


def test_super_users_may_do_everything() -> None:
    everything = allow(Operation.ALL, "*", principal="User:*", permission=AclPermission.DENY)
    authorizer = authorizer_of(everything, super_users=("User:ada",))
    for name in ("ada", "bob"):
        access = authorizer.access(KafkaPrincipal("User", name), "10.0.0.1")
        assert access.may(Operation.WRITE, ResourceType.TOPIC, "a") == (name == "ada")
        assert access.may_somewhere(Operation.WRITE, ResourceType.TOPIC) == (name == "ada")


def test_authorized_operations_are_bits() -> None:
    access = authorizer_of(allow(Operation.READ)).access(KafkaPrincipal("User", "ada"), "10.0.0.1")
    assert access.operations(ResourceType.TOPIC, "a") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert access.operations(ResourceType.TOPIC, "b") == 0
    kafkas_without_authorizer = {ResourceType.TOPIC: 3576, ResourceType.GROUP: 3400, ResourceType.CLUSTER: 8096}
    for resource_type, bits in kafkas_without_authorizer.items():
        assert FULL_ACCESS.operations(resource_type, CLUSTER_NAME) == bits


def test_other_types_of_principals_differ() -> None:
    access = authorizer_of(allow(Operation.READ)).access(KafkaPrincipal("Role", "ada"), "10.0.0.1")
    assert not access.may(Operation.READ, ResourceType.TOPIC, "a")


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("FE80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("*", "*"),
    ],
)
def test_addresses_are_compared_as_java_writes_them(host: str, text: str) -> None:
    assert address_text(host) == text
    access = authorizer_of(allow(Operation.READ, host=host)).access(KafkaPrincipal("User", "ada"), text)
    assert access.may(Operation.READ, ResourceType.TOPIC, "a")
