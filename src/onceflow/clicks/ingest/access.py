"""API keys of the HTTP endpoint, and the origins (pages) that may use them.

The keys are a TOML file. A key with origins is one of web pages, where everyone can read it: a browser may use it from
these origins only. A key without origins is one of servers, and browsers may not use it.

    [keys.shop]
    key = "pub_4f0e9a39"
    origins = ["https://shop.example"]
    events_per_second = 500

    [keys.backend]
    key = "secret_8d6a1f0e"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onceflow.errors import OnceflowError
from onceflow.listening import is_loopback
from onceflow.private_files import MODE, is_exposed

_FIELDS = {"key", "origins", "events_per_second"}


class WrongKeys(OnceflowError):
    """A file of keys that cannot be used."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, its allowed origins and its limit of events per second (0: none)."""

    name: str
    origins: tuple[str, ...] = ()
    events_per_second: float = 0.0

    def allows(self, origin: str | None) -> bool:
        """Return whether a request from this origin may use the key; None is a request of no browser."""
        if origin is None:
            return not self.origins
        return origin in self.origins or "*" in self.origins


class LocalPages(ApiKey):
    """Access without keys, for a server on loopback: programs and pages of this machine."""

    def allows(self, origin: str | None) -> bool:
        """Return whether the origin is none, or a page of this machine."""
        try:
            return origin is None or is_loopback(urlsplit(origin).hostname or "")
        except ValueError:  # It is not an URL.
            return False


LOCAL = LocalPages("local")


class Access:
    """All keys; without a mapping, requests of this machine need none."""

    def __init__(self, keys: Mapping[str, ApiKey] | None = None) -> None:
        self._keys = keys

    def key(self, secret: str) -> ApiKey | None:
        """Return the key with this text, or None."""
        return LOCAL if self._keys is None else self._keys.get(secret)

    def knows(self, origin: str) -> bool:
        """Return whether any key allows this origin. A browser asks this before it sends a key in a header."""
        return any(key.allows(origin) for key in self.keys)

    @property
    def keys(self) -> list[ApiKey]:
        """All keys."""
        return [LOCAL] if self._keys is None else list(self._keys.values())


def read_keys(path: Path) -> Access:
    """Return the keys of a file. Raises WrongKeys."""
    try:
        exposed, document = is_exposed(path), tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WrongKeys(f"cannot read the keys in {path}: {error}") from error
    if exposed:
        raise WrongKeys(f"every user of this machine can read the keys in {path}; {MODE}")
    tables = document.get("keys")
    if set(document) != {"keys"} or not isinstance(tables, dict) or not tables:
        raise WrongKeys(f"{path} has no keys; expected tables such as [keys.shop] and nothing else")
    keys: dict[str, ApiKey] = {}
    for name, table in tables.items():
        secret, key = _key(path, name, table)
        if secret in keys:
            raise WrongKeys(f"{path}: [keys.{name}] has the same key as [keys.{keys[secret].name}]")
        keys[secret] = key
    return Access(keys)


def _key(path: Path, name: str, table: Any) -> tuple[str, ApiKey]:
    where = f"{path}: [keys.{name}]"
    if not isinstance(table, dict) or set(table) - _FIELDS:
        raise WrongKeys(f"{where} may have only {', '.join(sorted(_FIELDS))}")
    secret, origins, rate = table.get("key"), table.get("origins", []), table.get("events_per_second", 0)
    if not isinstance(secret, str) or not secret:
        raise WrongKeys(f"{where} has no key; expected key = TEXT")
    if not isinstance(origins, list) or not all(_is_origin(origin) for origin in origins):
        raise WrongKeys(f"{where} has an invalid origin; expected a list such as ['https://shop.example'], or ['*']")
    if type(rate) not in (int, float) or not 0 <= rate < float("inf"):
        raise WrongKeys(f"{where} has an invalid events_per_second: {rate!r}; expected a number of at least 0")
    return secret, ApiKey(name, tuple(origins), float(rate))


def _is_origin(value: Any) -> bool:
    """Return whether the value is an origin as browsers send it: scheme, host and perhaps port, no path."""
    if value == "*":
        return True
    return isinstance(value, str) and "://" in value and value.count("/") == 2 and value == value.lower()
