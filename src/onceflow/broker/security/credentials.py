"""Users that authenticate with SCRAM: salted keys by user and mechanism, never a password.

Changes are decided here and recorded in the metadata log; codes and messages of errors are Kafka's
(org.apache.kafka.controller.ScramControlManager, org.apache.kafka.image.ScramImage).
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceflow.wire.errors import ErrorCode
from onceflow.wire.scram import BY_NUMBER, ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, Mechanism

USERS_MAX = 100_000
"""Credentials of all users; a broker does not accept any number of them."""
NAME_BYTES_MAX = 1000
SALT_BYTES_MAX = 1000
CHANGES_MAX = 1000
"""Credentials that one request changes; each takes some microseconds of hashing."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Salted keys of a password (RFC 5802, section 3)."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class CredentialKey(NamedTuple):
    """A user and the number of a mechanism."""

    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """A credential to store, as a client computed it: the password salted."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the change of one user's credential."""

    user: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


Changes = Mapping[CredentialKey, Credential | None]
Users = list[tuple[str, str, int]]
"""User, mechanism and iterations of each credential."""
"""Credentials to store, or to delete for None."""


def credential_of(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return Credential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.hash_name), iterations)


class Credentials:
    """The credentials of all users; `replay` applies a change at run time and at start."""

    def __init__(self) -> None:
        self.by_key: dict[CredentialKey, Credential] = {}

    def replay(self, key: CredentialKey, credential: Credential | None) -> None:
        """Store a credential, or delete it for None."""
        if credential is None:
            self.by_key.pop(key, None)
        else:
            self.by_key[key] = credential

    def of_user(self, user: str) -> dict[int, Credential]:
        """Return the user's credentials by the number of their mechanism."""
        keys = (CredentialKey(user, mechanism.number) for mechanism in MECHANISMS)
        return {key.mechanism: self.by_key[key] for key in keys if key in self.by_key}

    def decide(
        self,
        deletions: Sequence[CredentialKey],
        upsertions: Sequence[Upsertion],
        can_store: Callable[[str], bool] = lambda _name: True,
    ) -> tuple[Changes, list[Outcome]]:
        """Decide what a request changes; a user occurs once in it, with a name for which `can_store`."""
        counts: dict[str, int] = {}
        for user in (*(deletion.user for deletion in deletions), *(upsertion.user for upsertion in upsertions)):
            counts[user] = counts.get(user, 0) + 1
        outcomes: dict[str, Outcome] = {}
        changes: dict[CredentialKey, Credential | None] = {}
        for deletion in deletions:
            outcomes.setdefault(deletion.user, self._check_deletion(deletion))
            changes[deletion] = None
        for upsertion in upsertions:
            key = CredentialKey(upsertion.user, upsertion.mechanism)
            outcome = self._check_upsertion(upsertion, key, len(changes))
            if not outcome.error_code and not can_store(key.user):
                outcome = Outcome(key.user, ErrorCode.unacceptable_credential, "no user can have this name")
            outcomes.setdefault(upsertion.user, outcome)
            if not outcomes[upsertion.user].error_code:
                _user, number, iterations, salt, salted = upsertion
                changes[key] = credential_of(BY_NUMBER[number], salted, salt, iterations)
        for user, count in counts.items():
            if count > 1 and not outcomes[user].error_code:
                message = "A user credential cannot be altered twice in the same request"
                outcomes[user] = Outcome(user, ErrorCode.duplicate_resource, message)
        accepted = {key: change for key, change in changes.items() if not outcomes[key.user].error_code}
        return accepted, list(outcomes.values())

    def users(self) -> Users:
        """Return all credentials without their keys."""
        return sorted(
            (key.user, BY_NUMBER[key.mechanism].name, credential.iterations) for key, credential in self.by_key.items()
        )

    def _check_deletion(self, deletion: CredentialKey) -> Outcome:
        outcome = _check_key(deletion)
        if outcome is None and deletion not in self.by_key:
            message = "Attempt to delete a user credential that does not exist"
            outcome = Outcome(deletion.user, ErrorCode.resource_not_found, message)
        return outcome or Outcome(deletion.user)

    def _check_upsertion(self, upsertion: Upsertion, key: CredentialKey, changes: int) -> Outcome:
        outcome = _check_key(key)
        if outcome is not None:
            return outcome
        unacceptable = None
        if upsertion.iterations < ITERATIONS_MIN:
            unacceptable = "Too few iterations"
        elif upsertion.iterations > ITERATIONS_MAX:
            unacceptable = "Too many iterations"
        elif len(key.user.encode()) > NAME_BYTES_MAX:
            unacceptable = f"the name has more than {NAME_BYTES_MAX} bytes"
        elif len(upsertion.salt) > SALT_BYTES_MAX:
            unacceptable = f"the salt has more than {SALT_BYTES_MAX} bytes"
        elif changes >= CHANGES_MAX:
            unacceptable = f"a request changes at most {CHANGES_MAX} credentials"
        elif len(self.by_key) + changes >= USERS_MAX and key not in self.by_key:
            unacceptable = f"this broker stores at most {USERS_MAX} credentials"
        if unacceptable is None:
            return Outcome(key.user)
        return Outcome(key.user, ErrorCode.unacceptable_credential, unacceptable)


def _check_key(key: CredentialKey) -> Outcome | None:
    if not key.user:
        return Outcome(key.user, ErrorCode.unacceptable_credential, "Username must not be empty")
    if key.mechanism not in BY_NUMBER:
        return Outcome(key.user, ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return None
