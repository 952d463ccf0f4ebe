"""The cluster's ACLs, indexed by pattern and principal, and the decision that follows from them.

The rules are those of Kafka's StandardAuthorizer (org.apache.kafka.metadata.authorizer.StandardAuthorizerData): of the
ACLs whose pattern matches a resource, one DENY denies; without it one ALLOW allows; otherwise it is denied. If no
pattern matches, there is no decision. Read, Write, Delete and Alter allow Describe too, AlterConfigs DescribeConfigs;
a DENY implies nothing.
"""

import ipaddress
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from onceflow.wire.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    PatternType,
    ResourceType,
)

ACLS_BYTES_MAX = 64 * 1024**2
"""Memory of all ACLs; a new one beyond it is refused."""
BYTES_PER_ACL = 500
HOST_ANY = WILDCARD
_LITERAL, _PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)

IMPLYING: Mapping[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset((AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS,)),
}
"""Operation → operations that allow it too, if they are allowed."""
ALLOWING: Mapping[AclOperation, frozenset[AclOperation]] = {
    operation: IMPLYING.get(operation, frozenset()) | {operation, AclOperation.ALL} for operation in AclOperation
}
"""Operation → operations of ALLOW entries that allow it."""


class _Entry(NamedTuple):
    """Part of an ACL that is compared once pattern and principal match; the host is in `address_text`'s form."""

    host: str
    operation: AclOperation
    permission: AclPermission


_Entries = dict[str, dict[uuid.UUID, _Entry]]
"""Entries of one pattern: principal → id → entry."""


class Acls:
    """ACLs by id. Single-threaded: the event loop is its lock."""

    def __init__(self) -> None:
        self.by_id: dict[uuid.UUID, AclBinding] = {}
        self.by_pattern: dict[AclPattern, dict[uuid.UUID, AclBinding]] = {}
        self.size_bytes = 0
        self.changes = 0
        """Number of changes so far: what was derived from the ACLs is outdated when it differs."""
        self._ids: dict[AclBinding, uuid.UUID] = {}
        self._entries: dict[tuple[int, str, int], _Entries] = {}
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {of: {} for of in ResourceType}
        """Lengths of the names of prefixed patterns: length → number of patterns."""
        self._by_principal: dict[tuple[ResourceType, str], dict[uuid.UUID, AclBinding]] = {}

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._ids

    def add(self, acl_id: uuid.UUID, binding: AclBinding) -> None:
        """Replay the creation of an ACL."""
        pattern = binding.pattern
        if pattern not in self.by_pattern:
            self.by_pattern[pattern] = {}
            self._entries[pattern] = {}
            if pattern.pattern_type == PatternType.PREFIXED:
                lengths = self._prefix_lengths[pattern.resource_type]
                lengths[len(pattern.name)] = lengths.get(len(pattern.name), 0) + 1
        self.by_id[acl_id] = self.by_pattern[pattern][acl_id] = binding
        self._ids[binding] = acl_id
        entry = _Entry(address_text(binding.host), binding.operation, binding.permission)
        self._entries[pattern].setdefault(binding.principal, {})[acl_id] = entry
        self._by_principal.setdefault((pattern.resource_type, binding.principal), {})[acl_id] = binding
        self.size_bytes += size_of(binding)
        self.changes += 1

    def remove(self, acl_id: uuid.UUID) -> None:
        """Replay the deletion of an ACL."""
        binding = self.by_id.pop(acl_id)
        pattern = binding.pattern
        self._ids.pop(binding, None)
        self.size_bytes -= size_of(binding)
        self.changes += 1
        _discard(self._entries[pattern], binding.principal, acl_id)
        _discard(self._by_principal, (pattern.resource_type, binding.principal), acl_id)
        _discard(self.by_pattern, pattern, acl_id)
        if pattern not in self.by_pattern:
            del self._entries[pattern]
            if pattern.pattern_type == PatternType.PREFIXED:
                lengths = self._prefix_lengths[pattern.resource_type]
                lengths[len(pattern.name)] -= 1
                if not lengths[len(pattern.name)]:
                    del lengths[len(pattern.name)]

    def patterns(self, wanted: AclFilter) -> list[AclPattern]:
        """Return the patterns that a filter has to be compared with."""
        exact = wanted.exact_patterns
        if exact is not None:
            return [pattern for pattern in exact if pattern in self.by_pattern]
        return list(self.by_pattern)

    def decide(
        self, principals: Sequence[str], host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool | None:
        """Return whether one of `principals` may do the operation; None if no pattern matches the resource.

        `host` is in the form of `address_text`.
        """
        decision: bool | None = None
        allowing = ALLOWING[operation]
        for entries in self._matching(resource_type, name):
            decision = decision or False
            for principal in principals:
                for entry in entries.get(principal, _NO_ENTRIES).values():
                    if entry.host not in (HOST_ANY, host):
                        continue
                    if entry.permission == AclPermission.ALLOW:
                        decision = decision or entry.operation in allowing
                    elif entry.operation in (operation, AclOperation.ALL):
                        return False
        return decision

    def _matching(self, resource_type: ResourceType, name: str) -> Iterator[_Entries]:
        """Yield the entries of each pattern that matches the resource."""
        # A plain tuple is equal to an AclPattern, and created faster.
        by_pattern = self._entries
        for literal in (name, WILDCARD):
            entries = by_pattern.get((resource_type, literal, _LITERAL))
            if entries is not None:
                yield entries
        for length in self._prefix_lengths[resource_type]:
            if length <= len(name):
                entries = by_pattern.get((resource_type, name[:length], _PREFIXED))
                if entries is not None:
                    yield entries

    def decide_any(
        self, principals: Sequence[str], host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether one of `principals` may do the operation on at least one possible resource of the type.

        The rules are those of Authorizer.authorizeByResourceType: a DENY of everything denies, an ALLOW of everything
        allows, and any other ALLOW allows unless a DENY covers all of its pattern. No operation implies another.
        """
        denied: set[tuple[PatternType, str]] = set()
        allowed: list[AclPattern] = []
        for principal in principals:
            for binding in self._by_principal.get((resource_type, principal), _NO_BINDINGS).values():
                is_meant = binding.operation in (operation, AclOperation.ALL)
                if not is_meant or address_text(binding.host) not in (HOST_ANY, host):
                    continue
                _type, name, pattern_type = binding.pattern
                if binding.permission == AclPermission.ALLOW:
                    allowed.append(binding.pattern)
                else:
                    denied.add((pattern_type, name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(_is_somewhere_allowed(pattern, denied) for pattern in allowed)


_NO_ENTRIES: Mapping[uuid.UUID, _Entry] = {}
_NO_BINDINGS: Mapping[uuid.UUID, AclBinding] = {}


def _is_somewhere_allowed(allowed: AclPattern, denied: set[tuple[PatternType, str]]) -> bool:
    _type, name, pattern_type = allowed
    if pattern_type == PatternType.LITERAL and name == WILDCARD:
        return True
    if pattern_type == PatternType.LITERAL and (pattern_type, name) in denied:
        return False
    return not any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _discard(index: dict[_Key, dict[uuid.UUID, _Value]], key: _Key, acl_id: uuid.UUID) -> None:
    """Remove an ACL from an index, and its key with the last one."""
    del index[key][acl_id]
    if not index[key]:
        del index[key]


def size_of(binding: AclBinding) -> int:
    """Return about how many bytes of memory an ACL takes."""
    return BYTES_PER_ACL + len(binding.pattern.name) + len(binding.principal) + len(binding.host)


def is_address(text: str) -> bool:
    """Return whether the text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(1024)
def address_text(host: str) -> str:
    """Return an IP address as Java writes it: eight groups without leading zeros, IPv4 if it is mapped to IPv6.

    Any other text, such as `*`, is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(format(int(group, 16), "x") for group in address.exploded.split(":"))
