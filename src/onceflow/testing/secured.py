"""TLS, users and ACLs of a broker for tests: generated certificates, and credentials for every SASL mechanism."""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onceflow.broker.config import BrokerConfig
    from onceflow.broker.node import Node
    from onceflow.broker.topics.records import MetadataRecord
    from onceflow.wire.acls import AclBinding

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SALT_BYTES = 16


@dataclass(frozen=True)
class Certificates:
    """A generated authority, and the broker's key with its certificate, as PEM."""

    authority: str
    key: str = field(repr=False)
    chain: str


def generate_certificates(host: str) -> Certificates:
    """Generate an authority and a certificate for the host. Raises ModuleNotFoundError without the package trustme."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert(host, "localhost")
    chain = "".join(certificate.bytes().decode() for certificate in issued.cert_chain_pems)
    return Certificates(authority.cert_pem.bytes().decode(), issued.private_key_pem.bytes().decode(), chain)


def protocol_of(*, has_users: bool, has_tls: bool) -> str:
    """Return Kafka's name of the security protocol."""
    if has_users:
        return "SASL_SSL" if has_tls else "SASL_PLAINTEXT"
    return "SSL" if has_tls else "PLAINTEXT"


def read_acl(text: str) -> "AclBinding":
    """Return the ACL of `USER OPERATION RESOURCE`, such as `ada Read topic:visits`. Raises ValueError."""
    from onceflow.wire.acls import (
        CLUSTER_NAME,
        WILDCARD,
        AclBinding,
        AclOperation,
        AclPattern,
        AclPermission,
        PatternType,
        ResourceType,
    )

    try:
        user, operation, resource = text.split()
        kind, _, name = resource.partition(":")
        is_prefix = name.endswith("*") and name != WILDCARD
        pattern = AclPattern(
            ResourceType.of(kind),
            name.removesuffix("*") if is_prefix else name or CLUSTER_NAME,
            PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        )
        return AclBinding(pattern, f"User:{user}", WILDCARD, AclOperation.of(operation), AclPermission.ALLOW)
    except (ValueError, KeyError) as error:
        raise ValueError(f"acls: {text!r} is not USER OPERATION RESOURCE, such as 'ada Read topic:visits'") from error


class Access(NamedTuple):
    """Users, certificates and ACLs of a broker."""

    users: Mapping[str, str]
    certificates: Certificates | None
    acls: "Sequence[AclBinding] | None"
    """None: every client may do everything."""


def secured(config: "BrokerConfig", access: Access) -> "BrokerConfig":
    """Return the configuration with the users and certificates, and with an authorizer if there are ACLs."""
    users, certificates, acls = access
    security = config.security
    if users:
        security = replace(security, sasl_mechanisms=MECHANISMS, plain_passwords=dict(users))
    if certificates is not None:
        security = replace(security, key=certificates.key, certificates=certificates.chain)
    config = replace(config, security=security)
    if acls is None:
        return config
    from onceflow.broker.settings.authorization import STANDARD_AUTHORIZER

    return replace(config, authorizer_class=STANDARD_AUTHORIZER)


def store_acls(node: "Node", acls: "Sequence[AclBinding]") -> None:
    """Store the ACLs that the broker does not have yet."""
    from onceflow.broker.topics.records import AclRecord

    records = [AclRecord(uuid.uuid4(), binding) for binding in dict.fromkeys(acls) if binding not in node.acls]
    if records:
        node.metadata.record(records)
        node.metadata.sync()


def store_users(node: "Node", users: Mapping[str, str]) -> None:
    """Store the credentials of SCRAM that the broker does not have yet."""
    from onceflow.broker.security.credentials import CredentialKey, credential_of
    from onceflow.broker.topics.records import UserScramRecord
    from onceflow.wire.scram import ITERATIONS_MIN, salted_password
    from onceflow.wire.scram import MECHANISMS as SCRAM_MECHANISMS

    records: list[MetadataRecord] = []
    for user, password in users.items():
        for mechanism in SCRAM_MECHANISMS:
            key = CredentialKey(user, mechanism.number)
            stored = node.credentials.by_key.get(key)
            salt = secrets.token_bytes(SALT_BYTES) if stored is None else stored.salt
            iterations = ITERATIONS_MIN if stored is None else stored.iterations
            salted = salted_password(mechanism, password, salt, iterations)
            credential = credential_of(mechanism, salted, salt, iterations)
            if credential != stored:
                records.append(UserScramRecord(key, credential))
    if records:
        node.metadata.record(records)
        node.metadata.sync()
