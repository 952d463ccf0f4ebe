"""Nodes of ACLs, users and quotas in ZooKeeper, as Kafka 3.9 writes them (kafka.zk.ZkData, AclEntry, ZkAdminManager).

The ACLs of a pattern are one node. So are a user's credentials and quotas, and the quotas of a client id, of both, or
of an address: an *entity*, whose path is also that of the notice about it.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote_plus

import msgspec

from onceflow.broker.cluster import nodes
from onceflow.broker.security.acls import address_text
from onceflow.broker.security.client_quotas import CLIENT_ID, IP, IP_QUOTA_KEYS, QUOTA_KEYS, USER, Entity
from onceflow.broker.security.credentials import Credential
from onceflow.wire.acls import AclBinding, AclOperation, AclPattern, AclPermission, PatternType, ResourceType
from onceflow.wire.scram import Mechanism
from onceflow.zookeeper.nodes import damaged, decode
from onceflow.zookeeper.session import Create

ACLS, PREFIXED_ACLS = "/kafka-acl", "/kafka-acl-extended/prefixed"
ACL_CHANGES, PREFIXED_ACL_CHANGES = "/kafka-acl-changes", "/kafka-acl-extended-changes"
RESOURCE_TYPES = tuple(of for of in ResourceType if of not in (ResourceType.UNKNOWN, ResourceType.ANY))
ACL_PERSISTENT = (
    *(f"{top}/{of.spelled}" for top in (ACLS, PREFIXED_ACLS) for of in RESOURCE_TYPES),
    ACL_CHANGES,
    PREFIXED_ACL_CHANGES,
)
"""Nodes without a value that a broker with an authorizer creates at its start (KafkaZkClient.createAclPaths)."""

USERS, CLIENTS, IPS = "users", "clients", "ips"
DEFAULT_NAME = "<default>"
VALUE_BYTES_MAX = 900_000
"""Size of a node's value; ZooKeeper's limit of a request is 1 MB (jute.maxbuffer)."""

_DIRECTORIES = {PatternType.LITERAL: ACLS, PatternType.PREFIXED: PREFIXED_ACLS}
_BYTES_PER_ACL = len('{"principal":"","permissionType":"Allow","operation":"IdempotentWrite","host":""},')
_ILLEGAL = re.compile(r"[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class AclNode(msgspec.Struct, kw_only=True, frozen=True):
    """One ACL of a pattern."""

    principal: str
    permission: str = msgspec.field(name="permissionType")
    operation: str
    host: str


class AclsNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/kafka-acl/TYPE/NAME` and `/kafka-acl-extended/prefixed/TYPE/NAME`."""

    version: int = 1
    acls: list[AclNode]


class AclChangeNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/kafka-acl-extended-changes/acl_changes_N`, sequential; that of a literal pattern is `TYPE:NAME`."""

    version: int = 1
    resource_type: str = msgspec.field(name="resourceType")
    name: str
    pattern_type: str = msgspec.field(name="patternType")


def is_legal_name(name: str) -> bool:
    """Return whether a node can have this name (org.apache.zookeeper.common.PathUtils)."""
    return name not in ("", ".", "..") and not _ILLEGAL.search(name)


# ACLs


def acls_directory(resource_type: ResourceType, pattern_type: PatternType) -> str:
    return f"{_DIRECTORIES[pattern_type]}/{resource_type.spelled}"


def acls_path(pattern: AclPattern) -> str:
    return f"{acls_directory(pattern.resource_type, pattern.pattern_type)}/{pattern.name}"


def acls_value(bindings: Iterable[AclBinding]) -> bytes:
    """Return the value of a pattern's node."""
    return nodes.encode(
        AclsNode(
            acls=[
                AclNode(
                    principal=binding.principal,
                    permission=binding.permission.spelled,
                    operation=binding.operation.spelled,
                    host=binding.host,
                )
                for binding in bindings
            ]
        )
    )


def acls_bytes(bindings: Iterable[AclBinding]) -> int:
    """Return about how many bytes the value of these has."""
    return sum(_BYTES_PER_ACL + len(b.principal.encode()) + len(b.host.encode()) for b in bindings)


def bindings_of(pattern: AclPattern, value: bytes) -> frozenset[AclBinding]:
    """Return the ACLs in the node of a pattern. Raises DamagedNode."""
    path = acls_path(pattern)
    # Kafka leaves a node without a value if it was stopped in the middle of its creation.
    acls = decode(AclsNode, path, value).acls if value else ()
    try:
        return frozenset(
            AclBinding(
                pattern, acl.principal, acl.host, AclOperation.of(acl.operation), AclPermission.of(acl.permission)
            )
            for acl in acls
        )
    except KeyError as error:
        raise damaged(path, value, f"{error} is not an operation or a permission") from error


def acls_notice(pattern: AclPattern) -> Create:
    """Return the notice that the ACLs of a pattern were written."""
    directory, value = ACL_CHANGES, f"{pattern.resource_type.name}:{pattern.name}".encode()
    if pattern.pattern_type == PatternType.PREFIXED:
        directory = PREFIXED_ACL_CHANGES
        change = AclChangeNode(
            resource_type=pattern.resource_type.name, name=pattern.name, pattern_type=pattern.pattern_type.name
        )
        value = nodes.encode(change)
    return Create(f"{directory}/acl_changes_", value, sequence=True)


def noticed_pattern(path: str, value: bytes) -> AclPattern:
    """Return the pattern of a notice. Raises DamagedNode."""
    if path.startswith(PREFIXED_ACL_CHANGES):
        change = decode(AclChangeNode, path, value)
        type_name, name, pattern_name = change.resource_type, change.name, change.pattern_type
    else:
        type_name, _, name = value.decode(errors="replace").partition(":")
        pattern_name = PatternType.LITERAL.name
    try:
        pattern = AclPattern(ResourceType.of(type_name), name, PatternType.of(pattern_name))
    except KeyError as error:
        raise damaged(path, value, f"{error} is not a type") from error
    if pattern.pattern_type not in _DIRECTORIES or not is_legal_name(name):
        raise damaged(path, value, "it does not name a pattern")
    return pattern


# Users and quotas


def entity_path(entity: Entity) -> str:
    """Return the path of an entity below /config, as notices have it: `users/ada/clients/app`."""
    names = {kind: DEFAULT_NAME if name is None else sanitized(name) for kind, name in entity}
    parts = [
        (directory, names[kind])
        for kind, directory in ((USER, USERS), (CLIENT_ID, CLIENTS), (IP, IPS))
        if kind in names
    ]
    return "/".join(part for pair in parts for part in pair)


def entity_of(path: str) -> Entity | None:
    """Return the entity of a path of `entity_path`; None for any other, such as a topic's."""
    parts = path.split("/")
    if parts[::2] not in ([USERS], [CLIENTS], [IPS], [USERS, CLIENTS]) or len(parts) % 2 or not all(parts):
        return None
    kinds = {USERS: USER, CLIENTS: CLIENT_ID, IPS: IP}
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return frozenset((kinds[directory], _entity_name(directory, name)) for directory, name in pairs)


def _entity_name(directory: str, name: str) -> str | None:
    if name == DEFAULT_NAME:
        return None
    return address_text(unquote_plus(name)) if directory == IPS else unquote_plus(name)


def sanitized(name: str) -> str:
    """Return a user's or client's name as the name of a node (org.apache.kafka.common.utils.Sanitizer)."""
    return quote(name, safe="").replace("~", "%7E")


def config_path(path: str) -> str:
    """Return the node of an entity."""
    return f"/config/{path}"


def quota_text(key: str, value: float) -> str:
    """Return a quota as Kafka writes it: whole bytes and connections, others with a fraction."""
    whole = QUOTA_KEYS.get(key) or IP_QUOTA_KEYS.get(key)
    return str(int(value + 1e-6)) if whole else str(value)


def quotas_of(entity: Entity, config: Mapping[str, str]) -> dict[str, float]:
    """Return the quotas in an entity's node. Raises ValueError for one that is not a number above 0."""
    keys = IP_QUOTA_KEYS if any(kind == IP for kind, _name in entity) else QUOTA_KEYS
    quotas = {key: float(text) for key, text in config.items() if key in keys}
    for key, value in quotas.items():
        if not value > 0:
            raise ValueError(f"{key}={value} is not above 0")
    return quotas


def credential_text(credential: Credential) -> str:
    """Return a credential as the value of its mechanism (ScramCredentialUtils)."""
    salt, stored, server = (
        base64.b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


def credentials_of(config: Mapping[str, str], mechanisms: Iterable[Mechanism]) -> dict[int, Credential]:
    """Return the credentials in a user's node, by the mechanism's number. Raises ValueError without repeating them."""
    return {
        mechanism.number: _credential(mechanism, config[mechanism.name])
        for mechanism in mechanisms
        if mechanism.name in config
    }


def _credential(mechanism: Mechanism, text: str) -> Credential:
    fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    try:
        salt, stored, server = (
            base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        return Credential(salt, stored, server, int(fields["iterations"]))
    except (KeyError, ValueError) as error:
        raise ValueError(f"its credential of {mechanism.name} is damaged") from error
