"""Settings of a client's session with ZooKeeper, with the names of Kafka's `zookeeper.*` settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceflow.client.settings import (
    Config,
    InvalidSetting,
    Setting,
    choice,
    flag,
    login,
    nearest_name,
    number,
    read_settings,
    refuse_given,
    text,
)
from onceflow.errors import missing_package
from onceflow.private_files import MODE, is_exposed
from onceflow.properties import parse_properties

if TYPE_CHECKING:
    from onceflow.zookeeper.kazoo_session import ZooKeeper
    from onceflow.zookeeper.security import ZooKeeperSecurity

TIMEOUT_MS = 6_000
TIMEOUT_MS_MAX = 2**31 - 1
TLS = "zookeeper.ssl.client.enable"
SESSION_SETTINGS = (
    Setting("zookeeper.session.timeout.ms", TIMEOUT_MS, number(1, TIMEOUT_MS_MAX), ("zk.sessiontimeout.ms",)),
    Setting("zookeeper.connection.timeout.ms", TIMEOUT_MS, number(1, TIMEOUT_MS_MAX), ("zk.connectiontimeout.ms",)),
    Setting(TLS, False, flag),
    Setting("zookeeper.ssl.truststore.location", None, text),
    Setting("zookeeper.ssl.keystore.location", None, text),
    Setting("zookeeper.ssl.keystore.password", None, text, is_secret=True),
    Setting("zookeeper.ssl.endpoint.identification.algorithm", True, choice(**{"HTTPS": True, "": False})),
    Setting("zookeeper.digest", None, login, is_secret=True),
)
"""Every setting with its default; times in ms."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How to open a session."""

    connect: str
    session_timeout_ms: int = TIMEOUT_MS
    connection_timeout_ms: int = TIMEOUT_MS
    tls: bool = False
    trust_store_file: str | None = None
    key_store_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    digest: str | None = field(default=None, repr=False)

    def security(self) -> "ZooKeeperSecurity":
        """Load the files. Raises InvalidZooKeeperTls, and ModuleNotFoundError without the extra [cluster]."""
        try:
            from onceflow.zookeeper.security import ZooKeeperSecurity
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            message = missing_package("a session with ZooKeeper", "kazoo", "cluster")
            raise ModuleNotFoundError(message, name="kazoo") from error
        return ZooKeeperSecurity(
            tls=self.tls,
            trust_store_file=self.trust_store_file,
            key_store_file=self.key_store_file,
            key_password=self.key_password,
            checks_host_name=self.checks_host_name,
            digest=self.digest,
        )

    def new_session(self) -> "ZooKeeper":
        """Prepare a session, which is not opened yet. Raises as `security`."""
        security = self.security()
        from onceflow.zookeeper.kazoo_session import ZooKeeper

        return ZooKeeper(
            self.connect,
            session_timeout_ms=self.session_timeout_ms,
            connection_timeout_ms=self.connection_timeout_ms,
            security=security,
        )


def session_settings(connect: str, settings: Mapping[str, Any], given: Config) -> SessionSettings:
    """Return how to open a session from all settings, of which some are given. Raises InvalidSetting."""
    if not settings[TLS]:
        of_tls = [setting.name for setting in SESSION_SETTINGS if setting.name.startswith("zookeeper.ssl.")]
        of_tls.remove(TLS)
        refuse_given(SESSION_SETTINGS, given, of_tls, f"without {TLS}=true")
    return SessionSettings(
        connect,
        session_timeout_ms=settings["zookeeper.session.timeout.ms"],
        connection_timeout_ms=settings["zookeeper.connection.timeout.ms"],
        tls=settings[TLS],
        trust_store_file=settings["zookeeper.ssl.truststore.location"],
        key_store_file=settings["zookeeper.ssl.keystore.location"],
        key_password=settings["zookeeper.ssl.keystore.password"],
        checks_host_name=settings["zookeeper.ssl.endpoint.identification.algorithm"],
        digest=settings["zookeeper.digest"],
    )


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings in a file, unchecked. Raises InvalidSetting if it cannot be read, or has open secrets."""
    try:
        given = parse_properties(path.read_text(encoding="utf-8"))
        exposed = is_exposed(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidSetting(f"{path} cannot be read: {reason}") from error
    if exposed and any(setting.is_secret and setting.name in given for setting in SESSION_SETTINGS):
        raise InvalidSetting(f"{path} has a password, and every user of this machine can read it; {MODE}")
    return given


def read_session_file(connect: str, path: Path) -> SessionSettings:
    """Return how to open a session, from a file with these settings only. Raises InvalidSetting."""
    given = read_properties(path)
    names = [name for setting in SESSION_SETTINGS for name in (setting.name, *setting.aliases)]
    for name in given:
        if name not in names:
            # Without its value, which may be a password.
            raise InvalidSetting(f"{path}: {name} is not a valid setting; {nearest_name(name, names)}")
    return session_settings(connect, read_settings(SESSION_SETTINGS, given), given)
