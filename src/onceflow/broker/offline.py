"""Changes of a data directory whose broker does not run: the users that a first start needs."""

import asyncio
import secrets
from collections.abc import Iterable
from pathlib import Path

from onceflow.broker.config import BrokerConfig
from onceflow.broker.node import Node
from onceflow.broker.security.credentials import CredentialKey, credential_of
from onceflow.broker.topics.records import MetadataRecord, RemoveUserScramRecord, UserScramRecord
from onceflow.errors import OnceflowError
from onceflow.wire.scram import BY_NAME, BY_NUMBER, salted_password

SALT_BYTES = 16

Users = list[tuple[str, str, int]]
"""User, mechanism and iterations of each credential."""


class NoSuchUser(OnceflowError):
    """A user to remove does not exist."""


def list_users(data: Path) -> Users:
    """List the credentials in a data directory. Raises DataDirectoryRefused, OSError."""
    return _change(data, ())


def set_password(data: Path, user: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
    """Store a user's password in a data directory, which is created if necessary.

    Raises DataDirectoryRefused if a broker uses it, OSError.
    """
    records: list[MetadataRecord] = []
    for name in mechanisms:
        mechanism, salt = BY_NAME[name], secrets.token_bytes(SALT_BYTES)
        salted = salted_password(mechanism, password, salt, iterations)
        key = CredentialKey(user, mechanism.number)
        records.append(UserScramRecord(key, credential_of(mechanism, salted, salt, iterations)))
    _change(data, records)


def remove_user(data: Path, user: str, mechanisms: Iterable[str]) -> None:
    """Delete a user's credentials from a data directory. Raises NoSuchUser, DataDirectoryRefused, OSError."""
    existing = {(name, mechanism) for name, mechanism, _iterations in list_users(data)}
    missing = [name for name in mechanisms if (user, name) not in existing]
    if missing:
        raise NoSuchUser(f"user '{user}' has no credential of {', '.join(missing)} in {data}")
    _change(data, [RemoveUserScramRecord(CredentialKey(user, BY_NAME[name].number)) for name in mechanisms])


def _change(data: Path, records: Iterable[MetadataRecord]) -> Users:
    """Record the changes, if any, and return the users."""

    async def change() -> Users:
        node = Node.open(BrokerConfig(data))
        try:
            if records:
                node.metadata.record(list(records))
                node.metadata.sync()
            return sorted(
                (key.user, BY_NUMBER[key.mechanism].name, credential.iterations)
                for key, credential in node.credentials.by_key.items()
            )
        finally:
            await node.close()

    return asyncio.run(change())
