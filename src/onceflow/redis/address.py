"""Redis addresses: checked before use, and shown without their secrets.

| address | server |
|---|---|
| `redis://USER:PASSWORD@HOST:PORT/DATABASE`, `unix:///SOCKET?db=DATABASE` | that one |
| `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DATABASE` | the master that these Sentinels know |
| `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | the node of the cluster that has the keys' slot |

`rediss` in place of `redis` is TLS, for Sentinels too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.connection

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
"""Options allowed after the `?`. redis-py accepts any, including options that change its replies."""
SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}
"""More options with Sentinels, which have users of their own."""

FORMS = {
    "redis": "redis://HOST:PORT/DATABASE",
    "rediss": "rediss://HOST:PORT/DATABASE",
    "unix": "unix:///SOCKET?db=DATABASE",
    "redis+sentinel": "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE",
    "rediss+sentinel": "rediss+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE",
    "redis+cluster": "redis+cluster://HOST:PORT,HOST:PORT",
    "rediss+cluster": "rediss+cluster://HOST:PORT,HOST:PORT",
}
PORTS = {"sentinel": 26379, "cluster": 6379}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,@/]+)(?::(\d{1,5}))?")


class RedisAddressInvalid(OnceflowError):
    """The URL is not a Redis address, or does not lead to such a Redis."""


@dataclass(frozen=True, slots=True)
class RoutedAddress:
    """Address of several servers that know where the right one is."""

    kind: str
    """`sentinel` or `cluster`."""
    servers: tuple[tuple[str, int], ...]
    service: str
    """Name of the master at the Sentinels; empty for a cluster."""
    tls: bool
    settings: Mapping[str, Any]
    """redis-py's settings of a connection to the right server."""
    lookup_settings: Mapping[str, Any]
    """The same for a connection to one of `servers`."""


def require_address(url: str) -> None:
    """Raise RedisAddressInvalid for a URL that has none of FORMS."""
    why = _why_invalid(url)
    if why is not None:
        form = FORMS.get(url.partition("://")[0], FORMS["redis"])
        raise RedisAddressInvalid(f"Redis address '{shown(url)}' is not valid ({why}): write it as {form}")


def routed_address(url: str) -> RoutedAddress | None:
    """Return the parts of a valid address of Sentinels or of a cluster; None for the address of one server."""
    scheme, kind = _scheme_and_kind(url)
    if kind == "":
        return None
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    plain = f"{scheme}://{user}{'@' if user else ''}/{database}?{parts.query}"
    settings = {name: value for name, value in _parsed(plain).items() if name not in {"host", "connection_class"}}
    # Sentinels have their own users and no databases; all nodes of a cluster are alike.
    own = {name: settings.pop(name, None) for name in SENTINEL_OPTIONS}
    lookup = {name: value for name, value in settings.items() if name.startswith("ssl_")}
    if kind == "sentinel":
        lookup |= {name.removeprefix("sentinel_"): value for name, value in own.items()}
    else:
        lookup |= {name: settings.get(name) for name in ("username", "password")}
    servers = tuple(_server(host, PORTS[kind]) for host in hosts.split(","))
    return RoutedAddress(kind, servers, unquote(service), scheme == "rediss", settings, lookup)


def _parsed(url: str) -> dict[str, Any]:
    """Return redis-py's settings for the address of one server. Raises ValueError."""
    parse: Any = redis.connection.parse_url  # It has no types.
    return dict(parse(url))


def _scheme_and_kind(url: str) -> tuple[str, str]:
    scheme, _, kind = url.partition("://")[0].partition("+")
    return scheme, kind


def _server(text: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None or int(match[2] or port) > 65_535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return unquote(match[1].strip("[]")), int(match[2] or port)


def _why_invalid(url: str) -> str | None:
    if url.partition("://")[0] not in FORMS:
        return f"it must start with one of {', '.join(f'{scheme}://' for scheme in FORMS)}"
    _, kind = _scheme_and_kind(url)
    try:
        parts = urlsplit(url)
        if kind:
            routed_address(url)
        else:
            _parsed(url)
    except ValueError as error:
        return str(error)
    allowed = OPTIONS | SENTINEL_OPTIONS if kind == "sentinel" else OPTIONS
    wrong = sorted(parse_qs(parts.query, keep_blank_values=True).keys() - allowed)
    if wrong:
        return f"option {wrong[0]!r} is not one of {', '.join(sorted(allowed))}"
    return _why_path_invalid(kind, parts.scheme, parts.path, parse_qs(parts.query))


def _why_path_invalid(kind: str, scheme: str, path: str, query: Mapping[str, list[str]]) -> str | None:
    if kind == "sentinel":
        return None if re.fullmatch(r"/[^/]+(/\d*)?", path) else f"{path!r} is not a master's name and database number"
    if kind == "cluster" and (path.strip("/") not in {"", "0"} or query.get("db", ["0"]) != ["0"]):
        return "a cluster has only database 0"
    if scheme != "unix" and not re.fullmatch(r"/?\d*", path):
        return f"{path!r} is not a database number"
    return None


def shown(url: str) -> str:
    """Return the URL without its user and passwords, and with the number of its database."""
    without_user = re.sub(r"^([\w+]+://).*@", r"\1", url)
    without_database = re.fullmatch(r"(rediss?://[^/?]+|rediss?\+sentinel://[^/?]+/[^/?]+)/?", without_user)
    if without_database:
        return f"{without_database[1]}/0"
    return re.sub(r"([?&](?:sentinel_)?(?:user|username|password)=)[^&]*", r"\1…", without_user)
