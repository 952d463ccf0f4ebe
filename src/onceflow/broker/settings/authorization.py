"""Settings of the authorizer and of quotas."""

from dataclasses import dataclass

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.kinds import BOOLEAN, COUNT, SettingRefused
from onceflow.broker.settings.setting import Setting

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
"""Kafka's authorizer with ACLs in ZooKeeper."""


@dataclass(frozen=True)
class AuthorizerClass:
    """Kafka's name of the authorizer, or nothing."""

    kafka_type = 2
    metavar = "CLASS"

    def read(self, text: str) -> str:
        if text not in ("", STANDARD_AUTHORIZER, ACL_AUTHORIZER):
            raise ValueError(f"is not {self.allowed}")
        return text

    def write(self, value: object) -> str:
        return str(value)

    @property
    def allowed(self) -> str:
        return f"{STANDARD_AUTHORIZER}, with zookeeper.connect {ACL_AUTHORIZER}, or empty for none"


@dataclass(frozen=True)
class Principals:
    """Principals, each a type, a colon and a name, separated by semicolons."""

    kafka_type = 2
    metavar = "PRINCIPALS"

    def read(self, text: str) -> tuple[str, ...]:
        principals = tuple(part.strip() for part in text.split(";") if part.strip())
        if any(not all(principal.partition(":")) for principal in principals):
            raise ValueError(f"is not {self.allowed}")
        return principals

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ";".join(value)

    @property
    def allowed(self) -> str:
        return "principals such as User:admin, separated by semicolons"


AUTHORIZATION: tuple[Setting, ...] = (
    Setting(
        "authorizer.class.name",
        "authorizer_class",
        AuthorizerClass(),
        "Authorizer of requests. With it, a client may do what super.users or ACLs allow (docs/acls.md). Without it,"
        " every client may do everything. With zookeeper.connect it is Kafka's for that: AclAuthorizer.",
    ),
    Setting(
        "super.users",
        "super_users",
        Principals(),
        "Principals that may do everything, whatever the ACLs say. Requires authorizer.class.name.",
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        "allow_everyone_if_no_acl",
        BOOLEAN,
        "Whether every client may use a resource that no ACL matches. Requires authorizer.class.name.",
    ),
)

QUOTAS: tuple[Setting, ...] = (
    Setting(
        "quota.window.num",
        "quota_samples",
        COUNT,
        "Number of windows over which the rate of a client quota is measured, the current one included.",
    ),
    Setting(
        "quota.window.size.seconds",
        "quota_window_seconds",
        COUNT,
        "Length of such a window. It is also the maximum time that a client waits because of request_percentage.",
    ),
)


def check_authorization(config: BrokerConfig) -> None:
    """Raise SettingRefused for settings that would have no effect: a user relies on them."""
    wanted = STANDARD_AUTHORIZER if config.zookeeper_connect is None else ACL_AUTHORIZER
    if config.authorizer_class:
        if config.authorizer_class != wanted:
            where = "without" if config.zookeeper_connect is None else "with"
            raise SettingRefused(
                f"authorizer.class.name={config.authorizer_class}: must be {wanted} {where} zookeeper.connect"
            )
        return
    for name, value in (
        ("super.users", config.super_users),
        ("allow.everyone.if.no.acl.found", config.allow_everyone_if_no_acl),
    ):
        if value:
            raise SettingRefused(f"{name} has no effect without authorizer.class.name={wanted}")
