"""Login: a token, as a bearer token or by a form that sets a cookie; or a user whom a reverse proxy names.

A cookie is a time of expiry with its HMAC, whose key is derived from the token. So it survives a restart of the
server, and another token ends all sessions. A failed attempt gets its response after a second. An address with several
failures within that time is refused unread; the token of any other address is always read.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from starlette.requests import HTTPConnection

from onceflow.errors import OnceflowError
from onceflow.private_files import MODE, is_exposed

COOKIE = "onceflow"
SESSION_S = 30 * 24 * 3_600
FAILURE_S = 1.0
"""Delay of the response to a failed attempt."""
WAITING_MAX = 100
"""Responses to failed attempts that wait at a time; beyond it they are sent at once."""
FAILURES_OF_ADDRESS_MAX = 3
FAILURES_MAX = 10_000
"""Failures within FAILURE_S, of one address and of all; beyond them attempts are refused unread."""
IPV6_NETWORK_BITS = 64
"""Bits of the network of one client; it may use every address in it."""
TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 16, 256
_DIGITS_MAX = 12


class WrongToken(OnceflowError):
    """A file of a token that cannot be used."""


class WrongProxy(OnceflowError):
    """Text that is not the address of a proxy."""


class TooManyAttempts(OnceflowError):
    """An attempt while others of the same address wait for their response."""


class Login(Protocol):
    """A way to log in."""

    kind: str

    async def is_allowed(self, connection: HTTPConnection) -> bool:
        """Return whether the request may have the numbers. Raises TooManyAttempts."""


class NoLogin(Login):
    """Access for every request; only for a server on loopback."""

    kind = "none"

    async def is_allowed(self, connection: HTTPConnection) -> bool:
        """Return true."""
        return True


NO_LOGIN = NoLogin()


class _Failures:
    """Addresses of the latest failed attempts."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._latest: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def add(self, client: str) -> None:
        """Count a failure."""
        self._latest.append((self._clock_s(), client))
        self._counts[client] += 1

    def are_too_many(self, client: str) -> bool:
        """Return whether the client must wait until its failures, or those of all, are older than FAILURE_S."""
        oldest_s = self._clock_s() - FAILURE_S
        while self._latest and self._latest[0][0] <= oldest_s:
            _at_s, past = self._latest.popleft()
            self._counts[past] -= 1
            if not self._counts[past]:
                del self._counts[past]
        return self._counts[client] >= FAILURES_OF_ADDRESS_MAX or len(self._latest) >= FAILURES_MAX


class TokenLogin(Login):
    """Access with a token."""

    kind = "token"

    def __init__(
        self, token: str, clock_s: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"onceflow dashboard\0" + self._token).digest()
        self._clock_s = clock_s
        self._failures = _Failures(monotonic_s)
        self._waiting = 0

    async def is_allowed(self, connection: HTTPConnection) -> bool:
        """Return whether the request has the token, or a cookie that is not expired."""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self.is_token(token.strip(), connection)
        return self._is_session(connection.cookies.get(COOKIE, ""))

    async def is_token(self, token: str, connection: HTTPConnection) -> bool:
        """Return whether this is the token; if it is not, after a delay. Raises TooManyAttempts."""
        address = connection.client.host if connection.client else ""
        client = _client_of(address)
        if self._failures.are_too_many(client):
            raise TooManyAttempts(f"{address} has failed to log in too often within a second")
        if hmac.compare_digest(token.encode(errors="replace"), self._token):
            return True
        self._failures.add(client)
        if self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                await asyncio.sleep(FAILURE_S)
            finally:
                self._waiting -= 1
        return False

    def session(self) -> str:
        """Return the value of a new cookie."""
        return self._signed(int(self._clock_s()) + SESSION_S)

    def _is_session(self, cookie: str) -> bool:
        expiry, _, _ = cookie.partition(".")
        if not (expiry.isascii() and expiry.isdecimal() and len(expiry) <= _DIGITS_MAX):
            return False
        is_signed = hmac.compare_digest(cookie.encode(errors="replace"), self._signed(int(expiry)).encode())
        return is_signed and int(expiry) > self._clock_s()

    def _signed(self, expiry_s: int) -> str:
        return f"{expiry_s}.{hmac.new(self._key, str(expiry_s).encode(), hashlib.sha256).hexdigest()}"


class ProxyLogin(Login):
    """Access for requests of these proxies in which a header names a user."""

    kind = "header"

    def __init__(self, header: str, proxies: Iterable[str]) -> None:
        """`proxies` are addresses or networks. Raises WrongProxy."""
        self._header = header
        self._proxies = [_network(text) for text in proxies]

    async def is_allowed(self, connection: HTTPConnection) -> bool:
        """Return whether the request is one of a proxy, and names exactly one user."""
        users = connection.headers.getlist(self._header)
        return len(users) == 1 and bool(users[0].strip()) and self._is_proxy(connection)

    def _is_proxy(self, connection: HTTPConnection) -> bool:
        if connection.client is None:
            return False
        try:
            address = ipaddress.ip_address(connection.client.host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in proxy for proxy in self._proxies)


def _client_of(address: str) -> str:
    """Return the address, or the network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise WrongProxy(f"invalid address of a proxy: {text!r} ({error}); expected one like 10.0.0.7") from None


def read_token(path: Path) -> str:
    """Return the token in a file. Raises WrongToken."""
    try:
        exposed, text = is_exposed(path), path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongToken(f"cannot read the token in {path}: {error}") from error
    if exposed:
        raise WrongToken(f"every user of this machine can read the token in {path}; {MODE}")
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if not is_plain or not TOKEN_LENGTH_MIN <= len(text) <= TOKEN_LENGTH_MAX:
        raise WrongToken(
            f"the token in {path} has {len(text)} characters; expected {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} ASCII "
            "characters without spaces, such as those of 'openssl rand -hex 32'"
        )
    return text
