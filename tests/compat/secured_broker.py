"""A broker with TLS, every SASL mechanism and ACLs, for clients that are programs of their own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.testing.secured import store_users
from tests.broker.driven_broker import InnerBroker
from tests.broker.security.tokens import new_key, public, sign, write_keys
from tests.client.tls import Authority

HOST = "127.0.0.1"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS = {"ada": "correct horse", "eve": "battery staple"}
"""ada is a super user; eve has no ACL."""
SESSION_MS = 2_000
STAY_MS = 3_500
"""Time after which the session of a client that stays has ended."""


class SecuredBroker:
    """The running broker, and the settings of its clients."""

    def __init__(self, directory: Path) -> None:
        self._authority = Authority(directory)
        self._key = new_key()
        write_keys(directory / "jwks.json", public(self._key, kid="one"))
        security = SecurityConfig(
            key_store_file=str(self._authority.issue(HOST)),
            sasl_mechanisms=MECHANISMS,
            plain_passwords=USERS,
            bearer_keys_file=str(directory / "jwks.json"),
            reauthentication_ms_max=SESSION_MS,
        )
        self.broker = InnerBroker(
            directory / "data",
            listeners=(Endpoint(port=0, listener="SASL_SSL"),),
            security=security,
            authorizer_class="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            super_users=("User:ada",),
        )

    def client(self, mechanism: str, user: str = "ada", *, is_wrong: bool = False) -> str:
        """Return a client's settings for the programs, as JSON: the trusted file, the mechanism and the login."""
        secret = "wrong" if is_wrong else USERS[user]
        if mechanism == "OAUTHBEARER":
            secret = sign(new_key() if is_wrong else self._key, sub=user)
        trusted = str(self._authority.trusted)
        return json.dumps({"trusted": trusted, "mechanism": mechanism, "user": user, "secret": secret})


@contextmanager
def secured_broker(directory: Path) -> Iterator[SecuredBroker]:
    """Run it."""
    secured = SecuredBroker(directory)
    with secured.broker as running:
        running.call(lambda node: store_users(node, USERS))
        yield secured
