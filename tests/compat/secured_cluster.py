"""Security of the brokers of a mixed cluster: connections by certificates, or by SCRAM and TLS, and an authorizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from onceflow.client.admin import Admin
from onceflow.client.admin_responses import read_acl
from onceflow.client.cluster import Cluster
from onceflow.client.security import read_security
from onceflow.wire import apis
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
from tests.broker.cluster.test_inter_broker import PASSWORD, QUOTED, SCRAM_LOGIN
from tests.broker.raw_client import connected
from tests.compat.broker_certificates import PRINCIPAL, Certificates
from tests.compat.mixed_cluster import BROKERS, PLAINTEXT, Mixed, Settings
from tests.conformance.guarded import describing

INSIDE = "IN"
"""Listener of the brokers; clients without an authentication use the other one."""
LISTENERS = (PLAINTEXT, INSIDE)
ANONYMOUS = "User:ANONYMOUS"
CLUSTER_OPERATIONS = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE,
    AclOperation.IDEMPOTENT_WRITE,
)
"""Operations that the acts need. ClusterAction, which brokers need, is not one of them."""


@dataclass(frozen=True)
class Security:
    """Settings of all brokers, and those of a client that is the brokers' user."""

    settings: Settings
    client: Settings

    @contextmanager
    def connected(self, mixed: Mixed) -> Iterator[Cluster]:
        """Connect as that user, at the listener of the brokers."""
        bootstrap = ",".join(addresses[INSIDE] for addresses in mixed.addresses.values())
        with Cluster(bootstrap, security=read_security(self.client)) as cluster:
            yield cluster


def common(protocol: str, principal: str) -> Settings:
    return {
        "listener.security.protocol.map": f"{PLAINTEXT}:PLAINTEXT,{INSIDE}:{protocol}",
        "inter.broker.listener.name": INSIDE,
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": principal,
        "transaction.state.log.num.partitions": "3",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }


def with_certificates(certificates: Certificates) -> Security:
    """Let brokers authenticate by their certificates."""
    settings = {
        **common("SSL", PRINCIPAL),
        **certificates.settings,
        f"listener.name.{INSIDE.lower()}.ssl.client.auth": "required",
    }
    client = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(certificates.trusted),
        "ssl.keystore.location": str(certificates.broker),
    }
    return Security(settings, client)


def with_scram(certificates: Certificates) -> Security:
    """Let brokers log in with SCRAM; sessions end after five seconds."""
    settings = {
        **common("SASL_SSL", "User:broker"),
        **certificates.settings,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        f"listener.name.{INSIDE.lower()}.scram-sha-512.sasl.jaas.config": SCRAM_LOGIN.format(QUOTED),
        "connections.max.reauth.ms": "5000",
    }
    return Security(settings, scram_client(certificates, "broker", PASSWORD))


def scram_client(certificates: Certificates, user: str, password: str) -> Settings:
    """Return the settings of a client."""
    quoted = password.replace('"', '\\"')
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(certificates.trusted),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": SCRAM_LOGIN.format(quoted).replace("broker", user),
    }


def allowed(of: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    """Return an ACL that allows an operation to clients without an authentication."""
    return AclBinding(AclPattern(of, name, PatternType.LITERAL), ANONYMOUS, WILDCARD, operation, AclPermission.ALLOW)


def allow_acts(mixed: Mixed, security: Security) -> None:
    """Allow what the acts need, and wait until all brokers know it."""
    acls = [allowed(ResourceType.CLUSTER, CLUSTER_NAME, operation) for operation in CLUSTER_OPERATIONS]
    acls += [allowed(of, WILDCARD, AclOperation.ALL) for of in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)]
    with security.connected(mixed) as cluster:
        Admin(cluster).create_acls(acls)
    mixed.tree.await_that(lambda: all(acls_at(mixed, broker_id) == set(acls) for broker_id in BROKERS))


def acls_at(mixed: Mixed, broker_id: int) -> set[AclBinding]:
    """Return the ACLs that one broker describes to a client without an authentication, none if it may not see them."""
    with connected(mixed.bootstraps[broker_id]) as client:
        response = client.ask(apis.DESCRIBE_ACLS, 3, **describing())
    return {read_acl(resource, entry) for resource in response.resources for entry in resource.acls}
