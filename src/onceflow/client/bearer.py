"""Token of SASL/OAUTHBEARER in a file, which Kafka's clients name by `sasl.oauthbearer.token.endpoint.url=file:///…`.

The token is a JWT. It is read for each new connection, so a job that renews it replaces the file. The broker verifies
it; only the user and the end are read here (as in org.apache.kafka.common.security.oauthbearer.ClientJwtValidator).
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

from onceflow.client.errors import InvalidSecurity
from onceflow.private_files import MODE, is_exposed

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
TOKEN_BYTES_MAX = 1024**2


class Token(NamedTuple):
    """Token with what librdkafka must know of it."""

    text: str
    user: str
    ends_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """File with a token, as a mechanism of SASL."""

    token_file: str
    mechanism: ClassVar[str] = "OAUTHBEARER"

    def read(self) -> Token:
        """Return the token in the file. Raises InvalidSecurity; its message has no part of the token."""
        path = Path(self.token_file)
        try:
            exposed = is_exposed(path)
            with path.open("rb") as file:
                content = file.read(TOKEN_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidSecurity(f"{TOKEN_URL}: {path} cannot be read: {error.strerror}") from error
        if exposed:
            raise InvalidSecurity(f"{TOKEN_URL}: every user of this machine can read {path}; {MODE}")
        try:
            text = content.decode("ascii").strip()
            _header, payload, _signature = text.split(".")
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            return Token(text, str(claims.get("sub", "")), float(claims["exp"]))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise InvalidSecurity(f"{TOKEN_URL}: {path} has no token: expected a JWT with the claim exp") from None


def read_bearer(url: str) -> Bearer:
    """Return the file that a URL names, with a token in it. Raises InvalidSecurity."""
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InvalidSecurity(f"{TOKEN_URL}={url!r} is not the URL of a file, such as file:///run/secrets/token")
    bearer = Bearer(unquote(parts.path))
    bearer.read()
    return bearer
