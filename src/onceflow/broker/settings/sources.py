"""BrokerConfig from file, environment and options. Options override the environment, which overrides the file.

Nothing is ignored silently: an unknown name, an invalid value and a name given twice are refused with a message that
names the source and a remedy.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onceflow.broker.config import NO_SECURITY, BrokerConfig
from onceflow.broker.settings.addresses import check_listeners
from onceflow.broker.settings.authorization import check_authorization
from onceflow.broker.settings.connections import check_address_limits
from onceflow.broker.settings.fixed import FIXED, REFUSED, WITHOUT_EFFECT, reason_of
from onceflow.broker.settings.inter_broker import check_inter_broker_listener, settings_of_no_cluster
from onceflow.broker.settings.kinds import SettingRefused
from onceflow.broker.settings.listener_settings import (
    is_kafkas_login,
    is_scram_login,
    note_of_kafkas_login,
    own_setting,
    settings_of_no_listener,
    with_own_settings,
    without_prefix,
)
from onceflow.broker.settings.replication import with_cluster_defaults
from onceflow.broker.settings.setting import Setting
from onceflow.broker.settings.table import SETTINGS
from onceflow.broker.settings.zookeeper import check_zookeeper
from onceflow.log.config import LogConfig
from onceflow.private_files import MODE, is_exposed
from onceflow.properties import parse_properties

ENVIRONMENT_PREFIX = "ONCEFLOW_BROKER_"
CONFIG_FILE_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG_FILE"


@dataclass(frozen=True)
class Source:
    """Settings from one source, by Kafka's name, with the source's spelling of a name."""

    given: Mapping[str, str]
    spell: Callable[[str], str] = str
    place: str = ""
    """Prefix of a name in a message, such as the path of the file."""

    def describe(self, name: str) -> str:
        """Return the name with its place, for a message."""
        return self.place + self.spell(name)


@dataclass
class Resolved:
    """The settings of all sources, with the notes and warnings to log, and the names that have no effect."""

    config: BrokerConfig
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)


def resolve(*sources: Source) -> Resolved:
    """Return the configuration; a later source overrides an earlier one. Raises SettingRefused."""
    values: dict[str, object] = {}
    overrides: dict[str, dict[str, object]] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for source in sources:
        _require_known(source)
        # In the table's order, so that the name with the highest precedence sets a field last.
        for setting in SETTINGS.values():
            if setting.name in source.given:
                values.update(_read(setting, source))
        notes += _notes(source)
        warnings += _warnings(source)
        for name in source.given:
            own = own_setting(name)
            if own is not None:
                listener, setting = own
                overrides.setdefault(listener, {}).update(_read(setting, source, name))
    if "data" not in values:
        raise SettingRefused("no data directory: neither --data DIRECTORY, such as --data log, nor log.dirs is set")
    given = {name: text for source in sources for name, text in source.given.items()}
    without_effect = [name for name in given if name not in SETTINGS and reason_of(name, WITHOUT_EFFECT) is not None]
    config = with_cluster_defaults(with_own_settings(_config(values), overrides), given)
    check_listeners(config)
    check_inter_broker_listener(config, given)
    check_address_limits(config)
    without_effect += settings_of_no_listener(config, given)
    without_effect += [name for name in settings_of_no_cluster(config, given) if name not in without_effect]
    check_authorization(config)
    check_zookeeper(config)
    return Resolved(config, notes, warnings, without_effect)


def _require_known(source: Source) -> None:
    for name in source.given:
        if _is_known(name):
            continue
        reason = reason_of(name, REFUSED)
        if reason is not None:
            raise SettingRefused(f"{source.describe(name)} is not supported: {reason}")
        raise SettingRefused(f"{source.describe(name)} is not a setting of this broker{_nearest(name, source.spell)}")


def _is_known(name: str) -> bool:
    has_effect = name in SETTINGS or without_prefix(name) in FIXED or own_setting(name) is not None
    return has_effect or is_kafkas_login(name) or reason_of(name, WITHOUT_EFFECT) is not None


def _nearest(name: str, spell: Callable[[str], str]) -> str:
    near = _closest(name, SETTINGS)
    return f"; did you mean {spell(near)}?" if near else "; docs/operating.md lists all settings"


def _closest(name: str, known: Iterable[str]) -> str | None:
    # Imported here because it costs milliseconds and only mistakes need it.
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _read(setting: Setting, source: Source, name: str | None = None) -> dict[str, object]:
    """Return the values by field; `name` is that of the listener's own setting. Raises SettingRefused."""
    name = name or setting.name
    text = source.given[name]
    try:
        return setting.read(text)
    except ValueError as error:
        shown = "" if setting.is_secret else f"={text}"
        # The error of a secret's value may show it too.
        raise SettingRefused(f"{source.describe(name)}{shown} {error}") from None if setting.is_secret else error


def _notes(source: Source) -> Iterable[str]:
    for name, text in source.given.items():
        fixed = FIXED.get(without_prefix(name))
        if fixed is not None:
            value, reason = fixed
            if text.strip() != value:
                raise SettingRefused(f"{source.describe(name)}={text}: must be {value}, since {reason}")
            yield f"{name}={value} is always the case here: {reason}"
        elif name in ("listeners", "advertised.listeners") and "CONTROLLER://" in text.upper():
            yield f"{name}={text}: nothing listens as CONTROLLER: {WITHOUT_EFFECT['controller.']}"
        elif (note := note_of_kafkas_login(name, text)) is not None:
            yield note
        elif name not in SETTINGS and own_setting(name) is None:
            yield f"{name}={text} has no effect: {reason_of(name, WITHOUT_EFFECT)}"


def _warnings(source: Source) -> Iterable[str]:
    """Yield a warning for each name that another one overrides with a different value."""
    given = [setting for setting in SETTINGS.values() if setting.name in source.given]
    for number, setting in enumerate(given):
        overriding = [other for other in given[number + 1 :] if other.field == setting.field]
        if overriding and _read(overriding[-1], source) != _read(setting, source):
            pair = (setting, overriding[-1])
            hidden, used = (f"{source.spell(one.name)}={source.given[one.name]}" for one in pair)
            yield f"{source.place}{hidden} has no effect: {used} in the same place takes precedence"


def _config(values: Mapping[str, Any]) -> BrokerConfig:
    own = {name: value for name, value in values.items() if "." not in name}
    log, security = (
        {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        for prefix in ("log.", "security.")
    )
    config = BrokerConfig(own.pop("data"), log=replace(LogConfig(), **log), security=replace(NO_SECURITY, **security))
    return replace(config, **own)


def from_file(path: Path) -> Source:
    """Read a `server.properties`. Raises SettingRefused if it cannot be read."""
    try:
        exposed, given = is_exposed(path), parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingRefused(f"--config-file {path} cannot be read: {error}") from error
    secret = next(filter(_is_secret, given), None)
    if exposed and secret is not None:
        raise SettingRefused(f"{path} has {secret}, and every user of this machine can read it; {MODE}")
    return Source(given, place=f"{path}: ")


def _is_secret(name: str) -> bool:
    own = own_setting(name)
    setting = SETTINGS.get(name) if own is None else own[1]
    return is_scram_login(name) or (setting is not None and setting.is_secret)


def from_environment(environment: Mapping[str, str]) -> Source:
    """Read the variables that start with ONCEFLOW_BROKER_. Raises SettingRefused for one that names no setting."""
    given: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        name = _NAMES.get(variable) or _name_of(variable)
        if not (_is_known(name) or reason_of(name, REFUSED)):
            near = _closest(variable, _NAMES)
            remedy = f"did you mean {near}?" if near else "docs/operating.md lists all settings"
            raise SettingRefused(f"{variable} in the environment is not a setting of this broker; {remedy}")
        if name in given:
            raise SettingRefused(f"{name} is set twice in the environment, once as {variable}; remove one of them")
        given[name] = text
    return Source(given, variable_of)


def variable_of(name: str) -> str:
    """Return the variable of a setting: log.retention.hours → ONCEFLOW_BROKER_LOG_RETENTION_HOURS."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _name_of(variable: str) -> str:
    """Return the setting of a variable; two underscores are one in a listener's name."""
    return variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "\0").replace("_", ".").replace("\0", "_")


_NAMES = {variable_of(name): name for name in (*SETTINGS, *FIXED)} | {
    variable_of(setting.option.removeprefix("--")): setting.name for setting in SETTINGS.values() if setting.option
}
"""Environment variable → Kafka's name; `--data` is ONCEFLOW_BROKER_DATA as well as ONCEFLOW_BROKER_LOG_DIRS."""
