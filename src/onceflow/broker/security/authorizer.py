"""Permissions of clients: what a principal may do, from a host, by the ACLs and the settings.

A handler asks an `Access`, which belongs to one request. Without an authorizer it is FULL_ACCESS.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from onceflow.broker.security.acls import Acls, address_text
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.wire.acls import CLUSTER_NAME, WILDCARD_PRINCIPAL, AclOperation, ResourceType

SOME_RESOURCE = "hardcode"
"""Name of a resource that stands for any without ACLs of its own, as in Kafka's Authorizer.authorizeByResourceType."""
ANY_DECISIONS_MAX = 1000

SUPPORTED_OPERATIONS: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
}
"""Operations of the types whose authorized operations a response can contain (AclEntry.supportedOperations)."""


class Access(Protocol):
    """Permissions of one client."""

    @property
    def is_full(self) -> bool: ...

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may do the operation on the resource."""
        ...

    def may_on_cluster(self, operation: AclOperation) -> bool:
        """Return whether the client may do the operation on the cluster."""
        ...

    def may_somewhere(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether the client may do the operation on at least one resource of the type."""
        ...

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized operations on a resource, as bits."""
        ...


class FullAccess:
    """Access without an authorizer: everything is allowed."""

    is_full = True

    def may(self, _operation: AclOperation, _resource_type: ResourceType, _name: str) -> bool:
        return True

    def may_on_cluster(self, _operation: AclOperation) -> bool:
        return True

    def may_somewhere(self, _operation: AclOperation, _resource_type: ResourceType) -> bool:
        return True

    def operations(self, resource_type: ResourceType, _name: str) -> int:
        return _bits(SUPPORTED_OPERATIONS[resource_type])


FULL_ACCESS = FullAccess()


class Authorizer:
    """Decides by ACLs, `super.users` and `allow.everyone.if.no.acl.found`, like Kafka's StandardAuthorizer."""

    def __init__(self, acls: Acls, super_users: Iterable[str], *, allow_if_no_acl: bool) -> None:
        self.acls = acls
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._any_decisions: dict[tuple[str, str, AclOperation, ResourceType], bool] = {}
        self._any_decisions_at = -1

    def access(self, principal: KafkaPrincipal, host: str) -> "AclAccess":
        """Return what a client may do; `host` is its address."""
        return AclAccess(self, str(principal), address_text(host))

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether an operation is allowed; `host` is in the form of `address_text`."""
        if principal in self._super_users:
            return True
        decision = self.acls.decide((principal, WILDCARD_PRINCIPAL), host, operation, resource_type, name)
        return self._allow_if_no_acl if decision is None else decision

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether an operation is allowed on at least one resource of the type. Decisions are kept."""
        if self._any_decisions_at != self.acls.changes or len(self._any_decisions) >= ANY_DECISIONS_MAX:
            self._any_decisions.clear()
            self._any_decisions_at = self.acls.changes
        key = (principal, host, operation, resource_type)
        decision = self._any_decisions.get(key)
        if decision is None:
            principals = (principal, WILDCARD_PRINCIPAL)
            decision = self.allows(principal, host, operation, resource_type, SOME_RESOURCE) or self.acls.decide_any(
                principals, host, operation, resource_type
            )
            self._any_decisions[key] = decision
        return decision


class AclAccess:
    """Permissions of one client, by the ACLs."""

    __slots__ = ("_authorizer", "_host", "_principal")

    is_full = False

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._host = host

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        return self._authorizer.allows(self._principal, self._host, operation, resource_type, name)

    def may_on_cluster(self, operation: AclOperation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_somewhere(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        return self._authorizer.allows_any(self._principal, self._host, operation, resource_type)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        allows = self._authorizer.allows
        return _bits(
            operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if allows(self._principal, self._host, operation, resource_type, name)
        )


def cluster_operations(access: Access) -> int:
    """Return the authorized operations on the cluster as bits; none without Describe."""
    is_visible = access.may_on_cluster(AclOperation.DESCRIBE)
    return access.operations(ResourceType.CLUSTER, CLUSTER_NAME) if is_visible else 0


def _bits(operations: Iterable[AclOperation]) -> int:
    """Return operations as a bit field (Utils.to32BitField)."""
    return sum(1 << operation for operation in operations)
