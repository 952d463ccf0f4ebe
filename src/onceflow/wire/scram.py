"""Kafka's SCRAM mechanisms, as requests and records number them, and the salting of a password (RFC 5802, KIP-554)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384


@dataclass(frozen=True)
class Mechanism:
    """One mechanism; `number` is its type (org.apache.kafka.clients.admin.ScramMechanism)."""

    number: int
    name: str
    hash_name: str


MECHANISMS = (Mechanism(1, "SCRAM-SHA-256", "sha256"), Mechanism(2, "SCRAM-SHA-512", "sha512"))
BY_NUMBER: Mapping[int, Mechanism] = {mechanism.number: mechanism for mechanism in MECHANISMS}
BY_NAME: Mapping[str, Mechanism] = {mechanism.name: mechanism for mechanism in MECHANISMS}


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return Hi(password, salt, iterations); as in Kafka, the password is not normalized."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
