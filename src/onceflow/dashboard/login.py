"""Login: a token, as a bearer token or by a form that sets a cookie; or a user whom a reverse proxy names.

A cookie is a time of expiry with its HMAC, whose key is derived from the token. So it survives a restart of the
server, and another token ends all sessions. A failed attempt gets its response after a second, and few may wait at a
time; until then further attempts of the same address are refused unread.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import Counter
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
WAITING_OF_ADDRESS_MAX = 3
"""Maximum of the failed attempts that wait, of all addresses and of one."""
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


class TokenLogin(Login):
    """Access with a token."""

    kind = "token"

    def __init__(self, token: str, clock_s: Callable[[], float] = time.time) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"onceflow dashboard\0" + self._token).digest()
        self._clock_s = clock_s
        self._waiting: Counter[str] = Counter()

    async def is_allowed(self, connection: HTTPConnection) -> bool:
        """Return whether the request has the token, or a cookie that is not expired."""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self.is_token(token.strip(), connection)
        return self._is_session(connection.cookies.get(COOKIE, ""))

    async def is_token(self, token: str, connection: HTTPConnection) -> bool:
        """Return whether this is the token; if it is not, after a delay. Raises TooManyAttempts."""
        address = connection.client.host if connection.client else ""
        if self._waiting[address] >= WAITING_OF_ADDRESS_MAX or self._waiting.total() >= WAITING_MAX:
            raise TooManyAttempts(f"{address} has failed to log in too often within a second")
        if hmac.compare_digest(token.encode(errors="replace"), self._token):
            return True
        self._waiting[address] += 1
        try:
            await asyncio.sleep(FAILURE_S)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
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
