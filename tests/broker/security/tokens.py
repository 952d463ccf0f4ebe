"""Tokens for tests, signed by keys of a set in a file."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

LATER = 3600

SigningKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a key for ES256, the fastest to generate."""
    return ec.generate_private_key(ec.SECP256R1())


def public(key: SigningKey, **members: str) -> dict[str, Any]:
    """Return the public key as a member of a set."""
    public_key = key.public_key()
    if isinstance(public_key, rsa.RSAPublicKey):
        return {**RSAAlgorithm.to_jwk(public_key, as_dict=True), **members}
    if isinstance(public_key, ec.EllipticCurvePublicKey):
        return {**ECAlgorithm.to_jwk(public_key, as_dict=True), **members}
    return {**OKPAlgorithm.to_jwk(public_key, as_dict=True), **members}


def write_keys(path: Path, *keys: Mapping[str, Any]) -> None:
    """Write a set of keys; another inode shows that the file has changed."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": keys}))
    new.replace(path)


def sign(key: Any, key_id: str | None = "one", algorithm: str | None = "ES256", **claims: Any) -> str:
    """Return a token of ada that ends in an hour; a claim of None is left out."""
    now = int(time.time())
    given = {"sub": "ada", "iat": now, "exp": now + LATER} | claims
    headers = {} if key_id is None else {"kid": key_id}
    present = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(present, key, algorithm, headers=headers)
