"""Users of a Kafka cluster that authenticate with SCRAM (KIP-554). The password itself is never sent."""

import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onceflow.client import requests
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestRefused
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, error_name
from onceflow.wire.scram import BY_NAME, BY_NUMBER, salted_password

SALT_BYTES = 16


class Credential(NamedTuple):
    """A credential that exists; its keys are never shown."""

    user: str
    mechanism: str
    iterations: int


def list_credentials(cluster: Cluster) -> list[Credential]:
    """List the credentials of all users. Raises ClientError."""
    build = requests.message(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, users=None)
    response = cluster.router.ask_any(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, build)
    _check("the users cannot be listed", response.error_code, response.error_message)
    return sorted(
        Credential(result.user, BY_NUMBER[info.mechanism].name, info.iterations)
        for result in response.results
        for info in result.credential_infos
    )


def set_password(cluster: Cluster, user: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
    """Store the user's password for each mechanism, in place of an earlier one. Raises RequestRefused, ClientError.

    One request changes one credential of a user, so that several mechanisms take several requests.
    """
    for name in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        upsertion = {
            "name": user,
            "mechanism": BY_NAME[name].number,
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted_password(BY_NAME[name], password, salt, iterations),
        }
        _alter(cluster, f"user '{user}' was not stored", upsertions=[upsertion])


def remove_user(cluster: Cluster, user: str, mechanisms: Sequence[str]) -> None:
    """Delete the user's credentials for each mechanism. Raises RequestRefused if one does not exist, ClientError."""
    for name in mechanisms:
        deletion = {"name": user, "mechanism": BY_NAME[name].number}
        _alter(cluster, f"user '{user}' was not removed", deletions=[deletion])


def _alter(
    cluster: Cluster, failure: str, *, deletions: Sequence[object] = (), upsertions: Sequence[object] = ()
) -> None:
    build = requests.message(apis.ALTER_USER_SCRAM_CREDENTIALS, deletions=deletions, upsertions=upsertions)
    (result,) = cluster.router.ask_controller(apis.ALTER_USER_SCRAM_CREDENTIALS, build).results
    _check(failure, result.error_code, result.error_message)


def _check(failure: str, code: ErrorCode, message: str | None) -> None:
    if code != ErrorCode.none:
        raise RequestRefused(f"{failure}: the broker returned {error_name(code)} ({message})", code)
