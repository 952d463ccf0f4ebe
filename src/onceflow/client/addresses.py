"""`HOST:PORT` as people write it, for brokers and listeners."""

from typing import NamedTuple

from onceflow.errors import OnceflowError


class InvalidAddress(OnceflowError):
    """An address that is not `HOST:PORT`."""


class Address(NamedTuple):
    """Where a broker listens. `str()` gives back what `parse_address` reads, IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `[IPV6]:PORT`; raises InvalidAddress."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or "://" in text or (":" in host and not bracketed):
        raise InvalidAddress(f"'{text}' is not a broker address: write HOST:PORT, for example 127.0.0.1:9092")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidAddress(f"'{text}' has the port '{port}': a port is a number from 0 to 65535")
    return Address(host[1:-1] if bracketed else host, int(port))


def parse_bootstrap(text: str) -> list[Address]:
    """Read `HOST:PORT,HOST:PORT…`, of which one that answers is enough; raises InvalidAddress."""
    return [parse_address(part) for part in text.split(",")]
