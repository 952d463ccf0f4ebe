"""One row of the table of settings (`onceflow.broker.settings.table`)."""

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.kinds import Kind

DEFAULTS = BrokerConfig(Path())


@dataclass(frozen=True)
class Setting:
    """One row. `field` is a path in BrokerConfig; several, separated by blanks, take the value's parts."""

    name: str
    field: str
    kind: Kind
    documentation: str
    option: str | None = None
    """A short option of its own; the other one is `--` and the name with dashes."""
    is_common: bool = False
    """Whether `--help` shows it."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.field.split())

    @property
    def options(self) -> tuple[str, ...]:
        """As typed; the short one first."""
        long = "--" + self.name.replace(".", "-")
        return (self.option, long) if self.option else (long,)

    def value(self, config: BrokerConfig) -> str | None:
        """What a broker's setting is, as text; None where it is unset or this name cannot say it (90 min in hours)."""
        found = attrgetter(*self.paths)(config)
        return None if found is None else self.kind.write(found)

    @property
    def default(self) -> str | None:
        """The default as text; None where there is none, as for the directory."""
        return None if self.field == "data" else self.value(DEFAULTS)

    def read(self, text: str) -> dict[str, object]:
        """Field → value. Raises ValueError that says what is wrong with the text."""
        value = self.kind.read(text.strip())
        if len(self.paths) == 1:
            return {self.paths[0]: value}
        assert isinstance(value, tuple)
        return dict(zip(self.paths, value, strict=True))
