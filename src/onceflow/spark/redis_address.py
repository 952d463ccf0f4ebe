"""A Redis address: checked before it is used, and shown without what is secret in it."""

import re
from urllib.parse import parse_qs, urlsplit

from onceflow.errors import OnceflowError

OPTIONS = {
    "db",
    "username",
    "password",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
}
"""What may stand behind the `?`: redis-py would take any option there, ones that change its answers too."""


class RedisAddressInvalid(OnceflowError):
    """The URL is not a Redis address."""


def require_address(url: str) -> None:
    """Refuse a URL that is not `redis://HOST:PORT/DATABASE`, `rediss://` or `unix://`. Raises RedisAddressInvalid."""
    parts = urlsplit(url)
    wrong = sorted(parse_qs(parts.query, keep_blank_values=True).keys() - OPTIONS)
    if wrong:
        why = f"option {wrong[0]!r} is none of {', '.join(sorted(OPTIONS))}"
    elif parts.scheme not in {"redis", "rediss", "unix"}:
        why = "it begins with none of redis://, rediss://, unix://"
    elif parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        why = f"{parts.path!r} is no database number"
    else:
        return
    raise RedisAddressInvalid(
        f"Redis address '{shown(url)}' is not valid ({why}): write it as redis://HOST:PORT/DATABASE"
    )


def shown(url: str) -> str:
    """The URL with user and password, and a password in its query, taken out."""
    without_user = re.sub(r"^([\w+]+://).*@", r"\1", url)
    return re.sub(r"([?&](?:user|username|password)=)[^&]*", r"\1…", without_user)
