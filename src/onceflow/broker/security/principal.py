"""The identity of a client, as ACLs and quotas name it."""

from typing import NamedTuple


class KafkaPrincipal(NamedTuple):
    """A type, such as `User`, and a name (org.apache.kafka.common.security.auth.KafkaPrincipal)."""

    type: str
    name: str

    def __str__(self) -> str:
        """Return the text that settings and ACLs use: `User:ada`."""
        return f"{self.type}:{self.name}"


ANONYMOUS = KafkaPrincipal("User", "ANONYMOUS")
"""Principal of a client that is not authenticated."""
