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
    why = _why_invalid(url)
    if why is not None:
        raise RedisAddressInvalid(
            f"Redis address '{shown(url)}' is not valid ({why}): write it as redis://HOST:PORT/DATABASE"
        )


def _why_invalid(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # Reading it is what checks it.
    except ValueError as error:
        return str(error)
    wrong = sorted(parse_qs(parts.query, keep_blank_values=True).keys() - OPTIONS)
    if wrong:
        return f"option {wrong[0]!r} is none of {', '.join(sorted(OPTIONS))}"
    if parts.scheme not in {"redis", "rediss", "unix"}:
        return "it begins with none of redis://, rediss://, unix://"
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        return f"{parts.path!r} is no database number"
    return None


def shown(url: str) -> str:
    """The URL with user and password, and a password in its query, taken out, and with the database that it means."""
    without_user = re.sub(r"^([\w+]+://).*@", r"\1", url)
    without_database = re.fullmatch(r"(rediss?://[^/?]+)/?", without_user)
    if without_database:
        return f"{without_database[1]}/0"
    return re.sub(r"([?&](?:user|username|password)=)[^&]*", r"\1…", without_user)
