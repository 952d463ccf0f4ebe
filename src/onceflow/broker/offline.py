"""Users that a first start needs, stored without a broker: in a data directory, or in the ZooKeeper of a cluster."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from onceflow.broker.config import BrokerConfig
from onceflow.broker.node import Node
from onceflow.broker.security.credentials import CredentialKey, Users, credential_of
from onceflow.broker.topics.records import RemoveUserScramRecord, UserScramRecord
from onceflow.errors import OnceflowError
from onceflow.wire.scram import BY_NAME, salted_password

SALT_BYTES = 16

UserRecord = UserScramRecord | RemoveUserScramRecord
Store = Callable[[Sequence[UserRecord]], Users]
"""Stores the changes, if any, and returns the users: `in_directory` or `in_zookeeper`, with their first argument."""


class NoSuchUser(OnceflowError):
    """A user to remove does not exist."""


def set_password(store: Store, user: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
    """Store a user's password."""
    records: list[UserRecord] = []
    for name in mechanisms:
        mechanism, salt = BY_NAME[name], secrets.token_bytes(SALT_BYTES)
        salted = salted_password(mechanism, password, salt, iterations)
        key = CredentialKey(user, mechanism.number)
        records.append(UserScramRecord(key, credential_of(mechanism, salted, salt, iterations)))
    store(records)


def remove_user(store: Store, user: str, mechanisms: Sequence[str]) -> None:
    """Delete a user's credentials. Raises NoSuchUser."""
    existing = {(name, mechanism) for name, mechanism, _iterations in store(())}
    missing = [name for name in mechanisms if (user, name) not in existing]
    if missing:
        raise NoSuchUser(f"user '{user}' has no credential of {', '.join(missing)}")
    store([RemoveUserScramRecord(CredentialKey(user, BY_NAME[name].number)) for name in mechanisms])


def in_directory(data: Path, records: Sequence[UserRecord]) -> Users:
    """Store the changes in a data directory, which is created if necessary. Raises DataDirectoryRefused, OSError."""

    async def change() -> Users:
        node = Node.open(BrokerConfig(data))
        try:
            if records:
                node.metadata.record(list(records))
                node.metadata.sync()
            return node.credentials.users()
        finally:
            await node.close()

    return asyncio.run(change())


def in_zookeeper(config: BrokerConfig, records: Sequence[UserRecord]) -> Users:
    """Store the changes in ZooKeeper; brokers that run follow them.

    Raises what `cluster.users.change_users` does, and ModuleNotFoundError without the packages for a cluster.
    """
    from onceflow.broker.cluster.users import change_users

    return change_users(config, records)
