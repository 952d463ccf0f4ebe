"""SCRAM users of a cluster in ZooKeeper, without a broker: the users that a first start needs.

The nodes and notices are those of kafka-configs 3.9 with --zookeeper (ConfigCommand.alterConfigWithZk); brokers that
run follow the notices.
"""

from collections.abc import Sequence

from onceflow.broker.cluster import nodes, security_nodes
from onceflow.broker.cluster.registry import ATTEMPTS_MAX, Registry
from onceflow.broker.cluster.security import ConfigChanges, RegistrySecurity, add_user_change, merged_config
from onceflow.broker.cluster.zookeeper_security import zookeeper_session
from onceflow.broker.config import BrokerConfig
from onceflow.broker.security.acls import Acls
from onceflow.broker.security.client_quotas import ClientQuotas
from onceflow.broker.security.credentials import Credentials, Users
from onceflow.broker.topics.records import RemoveUserScramRecord, UserScramRecord
from onceflow.broker.topics.security_state import SecurityState
from onceflow.errors import OnceflowError
from onceflow.log.clock import SystemClock
from onceflow.remedies import Remedy
from onceflow.zookeeper.reach import require_listening
from onceflow.zookeeper.session import Conflict, Session


class NoCluster(OnceflowError):
    """No broker has started with this chroot, and no user has been added."""


class InvalidUser(OnceflowError):
    """A user whose name no node can have."""


NO_BROKER = -1
DIRECTORIES = (security_nodes.config_path(security_nodes.USERS), nodes.CONFIG_CHANGES)


def change_users(config: BrokerConfig, records: Sequence[UserScramRecord | RemoveUserScramRecord]) -> Users:
    """Write the changes, if any, and return the users.

    Raises NoCluster without changes, ZooKeeperUnavailable, ZooKeeperRefused, InvalidZooKeeperTls, InvalidUser,
    DamagedNode, OutcomeUnknown, and Conflict if other programs changed the user at each attempt.
    """
    connect = config.zookeeper_connect
    assert connect is not None
    session = zookeeper_session(config)
    require_listening(connect)
    session.open()
    try:
        if records:
            for path in DIRECTORIES:
                session.ensure(path)
        elif session.read(DIRECTORIES[0]) is None:
            raise NoCluster(f"ZooKeeper {connect} has no {DIRECTORIES[0]}: no cluster; {Remedy.OTHER_CHROOT}")
        changes: ConfigChanges = {}
        for record in records:
            name = record.key.user
            if not security_nodes.is_legal_name(security_nodes.sanitized(name)):
                raise InvalidUser(f"no user in ZooKeeper can have the name '{name}'; choose another one")
            add_user_change(changes, record)
        for path, of_user in changes.items():
            _write(path, of_user, session)
        return _read(session)
    finally:
        session.close()


def _write(path: str, changes: dict[str, str | None], session: Session) -> None:
    for left in reversed(range(ATTEMPTS_MAX)):
        write = merged_config(path, changes, session)
        try:
            session.commit(write or ())
            return
        except Conflict:
            if not left:
                raise


def _read(session: Session) -> Users:
    state = SecurityState(Acls(), Credentials(), ClientQuotas())
    security = RegistrySecurity(Registry(session, NO_BROKER, SystemClock()), state, has_acls=False)
    security.adopt(security.look(session, (), _refuse))
    return state.credentials.users()


def _refuse(damaged: OnceflowError) -> None:
    raise damaged
