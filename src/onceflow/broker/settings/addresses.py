"""Types of the settings of listeners: their addresses, and the security protocol of each."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onceflow.broker.config import PLAINTEXT, PROTOCOLS, BrokerConfig, Endpoint
from onceflow.broker.settings.kinds import SettingRefused

CONTROLLER = "CONTROLLER"
"""Name of a KRaft controller's listener: skipped, since this broker connects to no controller."""
ANY_ADDRESS = ("0.0.0.0", "::")

_ENDPOINT = re.compile(
    r"(?:(?P<listener>[a-z0-9_.-]+)://)?(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>[0-9]{1,5})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Endpoints:
    """`NAME://HOST:PORT` of each listener, separated by commas; an IPv6 host in brackets.

    `HOST:PORT` alone is PLAINTEXT. The host is optional if `any_host`.
    """

    any_host: bool
    kafka_type = 2
    metavar = "HOST:PORT"

    def read(self, text: str) -> tuple[Endpoint, ...]:
        parts = [part.strip() for part in text.split(",")]
        endpoints = [self._read_one(part) for part in parts if part.partition("://")[0].upper() != CONTROLLER]
        if not endpoints:
            raise ValueError(f"is not {self.allowed}")
        name, count = Counter(endpoint.listener for endpoint in endpoints).most_common(1)[0]
        if count > 1:
            raise ValueError(f"has {count} listeners named {name}; each needs a name of its own")
        return tuple(endpoints)

    def _read_one(self, text: str) -> Endpoint:
        match = _ENDPOINT.fullmatch(text)
        if match is None or int(match["port"]) > 65535 or not (self.any_host or match["ipv6"] or match["host"]):
            raise ValueError(f"is not {self.allowed}")
        host = match["ipv6"] or match["host"] or ANY_ADDRESS[0]
        return Endpoint(host, int(match["port"]), (match["listener"] or PLAINTEXT).upper())

    def write(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        return ",".join(f"{endpoint.listener}://{address_text(endpoint)}" for endpoint in value) or None

    @property
    def allowed(self) -> str:
        return "HOST:PORT or NAME://HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092; commas separate them"


def address_text(endpoint: Endpoint) -> str:
    """Return HOST:PORT, an IPv6 host in brackets."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


@dataclass(frozen=True)
class ProtocolMap:
    """`NAME:PROTOCOL` of each listener, separated by commas."""

    kafka_type = 2
    metavar = "NAME:PROTOCOL"

    def read(self, text: str) -> Mapping[str, str]:
        protocols = {}
        for pair in text.split(","):
            name, _, protocol = (part.strip().upper() for part in pair.partition(":"))
            if not name or name in protocols or protocol not in PROTOCOLS:
                raise ValueError(f"is not {self.allowed}; a name occurs once")
            protocols[name] = protocol
        return MappingProxyType(protocols)

    def write(self, value: object) -> str:
        assert isinstance(value, Mapping)
        return ",".join(f"{name}:{protocol}" for name, protocol in value.items())

    @property
    def allowed(self) -> str:
        return f"NAME:PROTOCOL, separated by commas, where PROTOCOL is {' or '.join(PROTOCOLS)}"


def check_listeners(config: BrokerConfig) -> None:
    """Check that the settings of the listeners fit together. Raises SettingRefused."""
    names = {endpoint.listener for endpoint in config.listeners}
    for endpoint in config.listeners:
        if endpoint.listener not in config.listener_protocols:
            raise SettingRefused(
                f"listeners: {endpoint.listener} has no security protocol; name one in listener.security.protocol.map"
            )
    ports = Counter(endpoint[:2] for endpoint in config.listeners if endpoint.port)
    for (host, port), count in ports.items():
        if count > 1:
            raise SettingRefused(f"listeners: {count} listeners on port {port} of {host}; each needs its own port")
    for endpoint in config.advertised:
        if endpoint.listener not in names:
            raise SettingRefused(
                f"advertised.listeners: {endpoint.listener} is not one of the listeners {', '.join(sorted(names))}"
            )
