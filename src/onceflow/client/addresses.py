"""Addresses of brokers and listeners in the form `HOST:PORT`."""

from typing import NamedTuple

from onceflow.errors import OnceflowError


class InvalidAddress(OnceflowError):
    """An address that is not `HOST:PORT`."""


class Address(NamedTuple):
    """Address of a broker. `str()` returns what `parse_address` reads, with IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT` or `[IPV6]:PORT`. Raises InvalidAddress."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or "://" in text or (":" in host and not bracketed):
        raise InvalidAddress(f"'{text}' is not a broker address; write HOST:PORT, for example 127.0.0.1:9092")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidAddress(f"'{text}' has an invalid port '{port}'; a port is a number from 0 to 65535")
    return Address(host[1:-1] if bracketed else host, int(port))


def parse_bootstrap(text: str) -> list[Address]:
    """Parse `HOST:PORT,HOST:PORT…`; one broker that responds is enough. Raises InvalidAddress."""
    return [parse_address(part) for part in text.split(",")]
