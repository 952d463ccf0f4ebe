"""Makes a BrokerConfig of what file, environment and options say. Options beat the environment, which beats the file.

Nothing is passed over in silence: an unknown name, a wrong value and a name that is given twice are refused with one
sentence that says where it stands and what would be right.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.fixed import FIXED, REFUSED, WITHOUT_EFFECT, reason_of
from onceflow.broker.settings.kinds import SettingRefused
from onceflow.broker.settings.properties import parse_properties
from onceflow.broker.settings.setting import Setting
from onceflow.broker.settings.table import SETTINGS
from onceflow.log.config import LogConfig

ENVIRONMENT_PREFIX = "ONCEFLOW_BROKER_"
CONFIG_FILE_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG_FILE"


@dataclass(frozen=True)
class Source:
    """One place that settings come from: Kafka's name → text, and how the place spells a name."""

    given: Mapping[str, str]
    spell: Callable[[str], str] = str
    place: str = ""
    """What stands before a name in a message, such as the file that it is in."""

    def told(self, name: str) -> str:
        """The name with its place."""
        return self.place + self.spell(name)


@dataclass
class Resolved:
    """The settings of all sources together, and what is to be told of them in the log."""

    config: BrokerConfig
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def resolve(*sources: Source) -> Resolved:
    """The configuration; `sources` are the weakest first. Raises SettingRefused."""
    values: dict[str, object] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for source in sources:
        _require_known(source)
        # In the table's order: of the names that set one field the strongest is the last.
        for setting in SETTINGS.values():
            if setting.name in source.given:
                values.update(_read(setting, source))
        notes += _notes(source)
        warnings += _warnings(source)
    if "data" not in values:
        raise SettingRefused("the broker needs a directory for its data: --data DIRECTORY, or log.dirs in its file")
    return Resolved(_config(values), notes, warnings)


def _require_known(source: Source) -> None:
    for name in source.given:
        if _is_known(name):
            continue
        reason = reason_of(name, REFUSED)
        if reason is not None:
            raise SettingRefused(f"{source.told(name)} is not for this broker: {reason}")
        raise SettingRefused(f"{source.told(name)} is no setting of this broker{_nearest(name, source.spell)}")


def _is_known(name: str) -> bool:
    return name in SETTINGS or name in FIXED or reason_of(name, WITHOUT_EFFECT) is not None


def _nearest(name: str, spell: Callable[[str], str]) -> str:
    near = _nearest_of(name, SETTINGS)
    return f"; did you mean {spell(near)}?" if near else "; docs/operating.md lists them all"


def _nearest_of(name: str, known: Iterable[str]) -> str | None:
    # Loading it takes milliseconds of every start; it is for mistakes alone.
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _read(setting: Setting, source: Source) -> dict[str, object]:
    text = source.given[setting.name]
    try:
        return setting.read(text)
    except ValueError as error:
        raise SettingRefused(f"{source.told(setting.name)}={text} {error}") from error


def _notes(source: Source) -> Iterable[str]:
    for name, text in source.given.items():
        if name in FIXED:
            value, reason = FIXED[name]
            if text.strip() != value:
                raise SettingRefused(f"{source.told(name)}={text} cannot be: it is {value}, since {reason}")
            yield f"{name}={value} is what this broker does anyway: {reason}"
        elif name in ("listeners", "advertised.listeners") and "CONTROLLER://" in text.upper():
            yield f"{name}={text}: nothing listens as CONTROLLER: {WITHOUT_EFFECT['controller.']}"
        elif name not in SETTINGS:
            yield f"{name}={text} has no effect: {reason_of(name, WITHOUT_EFFECT)}"


def _warnings(source: Source) -> Iterable[str]:
    """What is given, and hidden by a stronger name that says something else."""
    given = [setting for setting in SETTINGS.values() if setting.name in source.given]
    for number, weak in enumerate(given):
        stronger = [setting for setting in given[number + 1 :] if setting.field == weak.field]
        if stronger and _read(stronger[-1], source) != _read(weak, source):
            hidden, strong = (f"{source.spell(each.name)}={source.given[each.name]}" for each in (weak, stronger[-1]))
            yield f"{source.place}{hidden} has no effect: {strong} in the same place is stronger"


def _config(values: Mapping[str, Any]) -> BrokerConfig:
    own = {name: value for name, value in values.items() if not name.startswith("log.")}
    log = {name.removeprefix("log."): value for name, value in values.items() if name.startswith("log.")}
    return replace(BrokerConfig(own.pop("data")), **own, log=replace(LogConfig(), **log))


def from_file(path: Path) -> Source:
    """A `server.properties`. Raises SettingRefused where it cannot be read."""
    try:
        given = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingRefused(f"--config-file {path} cannot be read: {error}") from error
    return Source(given, place=f"{path}: ")


def from_environment(environment: Mapping[str, str]) -> Source:
    """The variables that begin with ONCEFLOW_BROKER_. Raises SettingRefused for one that names no setting."""
    given: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        name = _NAMES.get(variable) or _name_of(variable)
        if not (_is_known(name) or reason_of(name, REFUSED)):
            near = _nearest_of(variable, _NAMES)
            remedy = f"did you mean {near}?" if near else "docs/operating.md lists them all"
            raise SettingRefused(f"{variable} in the environment is no setting of this broker; {remedy}")
        if name in given:
            raise SettingRefused(f"{name} stands twice in the environment, once as {variable}; leave one of them")
        given[name] = text
    return Source(given, variable_of)


def variable_of(name: str) -> str:
    """log.retention.hours → ONCEFLOW_BROKER_LOG_RETENTION_HOURS."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _name_of(variable: str) -> str:
    return variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")


_NAMES = {variable_of(name): name for name in (*SETTINGS, *FIXED)} | {
    variable_of(setting.option.removeprefix("--")): setting.name for setting in SETTINGS.values() if setting.option
}
"""Environment variable → Kafka's name; `--data` is ONCEFLOW_BROKER_DATA as well as ONCEFLOW_BROKER_LOG_DIRS."""
