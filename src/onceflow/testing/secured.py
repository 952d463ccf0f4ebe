"""TLS and users of a broker for tests: generated certificates, and credentials for every SASL mechanism."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.broker.config import BrokerConfig
    from onceflow.broker.node import Node
    from onceflow.broker.topics.records import MetadataRecord

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


def secured(config: "BrokerConfig", users: Mapping[str, str], certificates: Certificates | None) -> "BrokerConfig":
    """Return the configuration with the users and certificates."""
    security = config.security
    if users:
        security = replace(security, sasl_mechanisms=MECHANISMS, plain_passwords=dict(users))
    if certificates is not None:
        security = replace(security, key=certificates.key, certificates=certificates.chain)
    return replace(config, security=security)


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
