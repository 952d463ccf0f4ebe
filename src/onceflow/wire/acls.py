"""ACL bindings and the filters that select them, as in Kafka's ACL requests.

A binding says which principal may, or may not, do an operation on the resources that its pattern matches, from a host.
The numbers are Kafka's (org.apache.kafka.common.acl, org.apache.kafka.common.resource).
"""

from enum import IntEnum
from typing import NamedTuple, Self

WILDCARD = "*"
"""Name of a literal pattern that matches every resource; host of an entry that holds for every host."""
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of type CLUSTER."""


class _Code(IntEnum):
    """A code of the protocol; an unknown one is UNKNOWN, as in Kafka."""

    # An enum's own hash is that of its name, computed in Python: a decision takes hashes of several codes.
    __hash__ = int.__hash__

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls(0) if isinstance(value, int) and value else None

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the member with a name as users write it: DescribeConfigs, describe-configs. Raises KeyError."""
        return {member.title: member for member in cls}[name.replace("_", "").replace("-", "").lower()]

    @property
    def title(self) -> str:
        """The name in lower case, without underscores."""
        return self.name.replace("_", "").lower()

    @property
    def spelled(self) -> str:
        """The name as Kafka's tools print it: DescribeConfigs."""
        return "".join(part.capitalize() for part in self.name.split("_"))


class ResourceType(_Code):
    """Type of a resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How a pattern's name is compared with a resource's name; ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Code):
    """Operation of a client on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_Code):
    """Whether a binding allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class AclPattern(NamedTuple):
    """The resources of a binding."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType


class AclBinding(NamedTuple):
    """One ACL."""

    pattern: AclPattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


class AclFilter(NamedTuple):
    """Selection of bindings: None and ANY match everything (AclBindingFilter, ResourcePatternFilter of KIP-290).

    Pattern type MATCH selects every pattern that matches the resource `name`: literal, prefixed and wildcard ones.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    @property
    def unknown_part(self) -> str | None:
        """The part with a code that this release does not know, in Kafka's words."""
        if 0 in (self.resource_type, self.pattern_type):
            return "patternFilter"
        return "entryFilter" if 0 in (self.operation, self.permission) else None

    def matches(self, binding: AclBinding) -> bool:
        """Return whether the binding is selected."""
        return self.matches_pattern(binding.pattern) and self.matches_entry(binding)

    def matches_pattern(self, pattern: AclPattern) -> bool:
        """Return whether the pattern of a binding is selected."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def matches_entry(self, binding: AclBinding) -> bool:
        """Return whether principal, host, operation and permission of a binding are selected."""
        return (
            self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermission.ANY, binding.permission)
        )

    @property
    def exact_patterns(self) -> list[AclPattern] | None:
        """The only patterns that can match, if the filter names a resource; None if it has to be compared with all."""
        if self.name is None or self.resource_type == ResourceType.ANY or self.pattern_type == PatternType.MATCH:
            return None
        types = (
            (PatternType.LITERAL, PatternType.PREFIXED)
            if self.pattern_type == PatternType.ANY
            else (self.pattern_type,)
        )
        return [AclPattern(self.resource_type, self.name, pattern_type) for pattern_type in types]
