"""The classic settings by name: a table says what each one takes, and nothing is accepted and then ignored."""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.client.errors import ClientError

Config = Mapping[str, Any]

FIRST_CONTACT_S_MAX = 10.0
"""How long a broker may take that has never answered: it may be a wrong address."""
SECURITY_PREFIXES = ("security.protocol", "ssl.", "sasl.")
"""Names that go to librdkafka as they are, which refuses what it does not know."""


class InvalidSetting(ClientError):
    """A setting is unknown, missing, or has a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `read` turns what the user gave into what the code uses, and raises ValueError if it cannot."""

    name: str
    default: Any
    read: Callable[[Any], Any]
    aliases: tuple[str, ...] = ()


def read_settings(table: Iterable[Setting], config: Config) -> dict[str, Any]:
    """Every setting of `table` by name, from `config` or its default. Raises InvalidSetting."""
    settings = {setting.name: setting for setting in table}
    names = {alias: setting.name for setting in settings.values() for alias in (setting.name, *setting.aliases)}
    given: dict[str, Any] = {}
    for spelled, value in config.items():
        if spelled.startswith(SECURITY_PREFIXES):
            continue
        if spelled not in names:
            nearest = difflib.get_close_matches(spelled, names, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(sorted(names))}"
            raise InvalidSetting(f"{spelled}={value!r} is not a setting: {hint}")
        if names[spelled] in given:
            raise InvalidSetting(f"{spelled} says the same as {names[spelled]}: give one of them")
        given[names[spelled]] = value
    return {name: _read(setting, given) for name, setting in settings.items()}


def refuse_given(table: Iterable[Setting], config: Config, names: Iterable[str], why: str) -> None:
    """Raises InvalidSetting if `config` has one of these settings, by any of its names: it would have no effect."""
    settings = {setting.name: setting for setting in table}
    for name in names:
        for spelled in (name, *settings[name].aliases):
            if spelled in config:
                raise InvalidSetting(f"{spelled}={config[spelled]!r} has no meaning {why}")


def security_settings(config: Config) -> dict[str, Any]:
    """What `config` says about TLS and SASL, for librdkafka."""
    return {name: value for name, value in config.items() if name.startswith(SECURITY_PREFIXES)}


def _read(setting: Setting, given: Mapping[str, Any]) -> Any:
    if setting.name not in given:
        return setting.default() if callable(setting.default) else setting.default
    try:
        return setting.read(given[setting.name])
    except (ValueError, TypeError) as error:
        raise InvalidSetting(f"{setting.name}={given[setting.name]!r} cannot be used: {error}") from error


def required() -> Any:
    """The default of what has none; `read_settings` never returns it, see `require`."""
    return None


def number(low: int, high: int) -> Callable[[Any], int]:
    """A whole number from `low` to `high`, also as text."""

    def read(value: Any) -> int:
        found = int(value)
        if not low <= found <= high:
            raise ValueError(f"a number from {low} to {high} is needed")
        return found

    return read


def flag(value: Any) -> bool:
    """true or false, as a bool or as text."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("true or false is needed")
    return str(value).lower() == "true"


def choice(**meanings: Any) -> Callable[[Any], Any]:
    """One of the words; each stands for a value."""

    def read(value: Any) -> Any:
        if str(value) not in meanings:
            raise ValueError(f"one of {', '.join(meanings)} is needed")
        return meanings[str(value)]

    return read


def text(value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text is needed")
    return value


def implementation(method: str, known: Mapping[str, type[Any]]) -> Callable[[Any], Any]:
    """An object that has `method`: given itself, as its class, or as a name.

    A name is one of `known` (the last part of a Kafka class's name is enough) or "package.module:Class".
    """

    def read(value: Any) -> Any:
        found = _load(value, known) if isinstance(value, str) else value
        made = found() if isinstance(found, type) else found
        if not callable(getattr(made, method, None)):
            raise ValueError(f"it has no method {method}")
        return made

    return read


def _load(name: str, known: Mapping[str, type[Any]]) -> Any:
    if ":" not in name:
        if name.rpartition(".")[2] not in known:
            raise ValueError(f"one of {', '.join(known)} or a name like package.module:Class is needed")
        return known[name.rpartition(".")[2]]
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"it cannot be imported: {error}") from error


def require(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a setting that has no default. Raises InvalidSetting."""
    if settings[name] is None:
        raise InvalidSetting(f"{name} is needed, for example {name}=127.0.0.1:9092")
    return settings[name]
