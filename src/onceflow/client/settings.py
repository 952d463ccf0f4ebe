"""Settings by name: a table defines valid values, and no setting is accepted and then ignored."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.client.errors import ClientError

Config = Mapping[str, Any]

FIRST_CONTACT_S_MAX = 10.0
"""Maximum time until the first response of a broker: the address may be wrong."""
SECURITY_PREFIXES = ("security.protocol", "ssl.", "sasl.")
"""Prefixes of names that are passed to librdkafka unchanged, which refuses unknown ones."""


class InvalidSetting(ClientError):
    """A setting is unknown, missing, or has a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `read` converts the user's value, and raises ValueError if it cannot."""

    name: str
    default: Any
    read: Callable[[Any], Any]
    aliases: tuple[str, ...] = ()
    is_secret: bool = False


def read_settings(table: Iterable[Setting], config: Config) -> dict[str, Any]:
    """Return every setting of `table` by name, from `config` or its default. Raises InvalidSetting."""
    settings = {setting.name: setting for setting in table}
    names = {alias: setting.name for setting in settings.values() for alias in (setting.name, *setting.aliases)}
    given: dict[str, Any] = {}
    for spelled, value in config.items():
        if spelled.startswith(SECURITY_PREFIXES):
            continue
        if spelled not in names:
            raise InvalidSetting(f"{spelled}={value!r} is not a valid setting; {nearest_name(spelled, names)}")
        if names[spelled] in given:
            raise InvalidSetting(f"{spelled} is another name of {names[spelled]}; give one of them")
        given[names[spelled]] = value
    return {name: _read(setting, given, config) for name, setting in settings.items()}


def nearest_name(spelled: str, names: Iterable[str]) -> str:
    """Return a hint which name was meant, or which names there are."""
    known = sorted(names)
    nearest = difflib.get_close_matches(spelled, known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"expected one of {', '.join(known)}"


def refuse_given(table: Iterable[Setting], config: Config, names: Iterable[str], why: str) -> None:
    """Raise InvalidSetting if `config` has one of these settings, by any name: it would have no effect."""
    settings = {setting.name: setting for setting in table}
    for name in names:
        for spelled in (name, *settings[name].aliases):
            if spelled in config:
                shown = "…" if settings[name].is_secret else repr(config[spelled])
                raise InvalidSetting(f"{spelled}={shown} has no effect {why}")


def security_settings(config: Config) -> dict[str, Any]:
    """Return the TLS and SASL settings of `config`, for librdkafka."""
    return {name: value for name, value in config.items() if name.startswith(SECURITY_PREFIXES)}


def _read(setting: Setting, given: Mapping[str, Any], config: Config) -> Any:
    if setting.name not in given:
        return setting.default() if callable(setting.default) else setting.default
    try:
        value = setting.read(given[setting.name])
        return _create(value, config) if isinstance(value, type) else value
    except (ValueError, TypeError) as error:
        shown = "…" if setting.is_secret else repr(given[setting.name])
        raise InvalidSetting(f"{setting.name}={shown} cannot be used: {error}") from error


def _create(kind: type[Any], config: Config) -> Any:
    """Create an object; a constructor with one required parameter gets all settings, as Kafka's classes get them."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except ValueError:  # A class of an extension module, which does not tell.
        return kind()
    takes_settings = [(parameter.kind, parameter.default) for parameter in parameters] == [
        (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty)
    ]
    return kind(dict(config)) if takes_settings else kind()


def number(low: int, high: int) -> Callable[[Any], int]:
    """Return a reader of an integer from `low` to `high`, also as text."""

    def read(value: Any) -> int:
        parsed = int(value)
        if not low <= parsed <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return parsed

    return read


def flag(value: Any) -> bool:
    """Read true or false, as a bool or as text."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return str(value).lower() == "true"


def choice(**meanings: Any) -> Callable[[Any], Any]:
    """Return a reader of one of the words; each stands for a value."""

    def read(value: Any) -> Any:
        if str(value) not in meanings:
            raise ValueError(f"expected one of {', '.join(meanings)}")
        return meanings[str(value)]

    return read


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("expected a text")
    return value


def login(value: Any) -> str:
    """Read USER:PASSWORD."""
    user, separator, password = text(value).partition(":")
    if not (user and separator and password):
        raise ValueError("expected USER:PASSWORD")
    return f"{user}:{password}"


def implementation(method: str, known: Mapping[str, type[Any]]) -> Callable[[Any], Any]:
    """Return a reader of an object or a class with `method`, or of the class's name.

    A name is one of `known` (the last part of a Kafka class's name is enough) or "package.module:Class".
    """

    def read(value: Any) -> Any:
        loaded = _load(value, known) if isinstance(value, str) else value
        if not callable(getattr(loaded, method, None)):
            raise ValueError(f"it has no method {method}")
        return loaded

    return read


def _load(name: str, known: Mapping[str, type[Any]]) -> Any:
    if ":" not in name:
        if name.rpartition(".")[2] not in known:
            raise ValueError(f"expected one of {', '.join(known)} or a name like package.module:Class")
        return known[name.rpartition(".")[2]]
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"it cannot be imported: {error}") from error


def require(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting without a default. Raises InvalidSetting."""
    if settings[name] is None:
        raise InvalidSetting(f"{name} is required, for example {name}=127.0.0.1:9092")
    return settings[name]
