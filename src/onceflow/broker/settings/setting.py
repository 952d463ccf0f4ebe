"""A row of the settings table (`onceflow.broker.settings.table`)."""

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.kinds import Kind

DEFAULTS = BrokerConfig(Path())


@dataclass(frozen=True)
class Setting:
    """A setting. `field` is a path in BrokerConfig, or several separated by spaces that take the parts of the value."""

    name: str
    field: str
    kind: Kind
    documentation: str
    option: str | None = None
    """Short option, in addition to `--` and the name with dashes."""
    is_common: bool = False
    """Whether `--help` shows the option."""
    is_secret: bool = False
    """Whether the value must not be shown. It has no option: every user of the machine could read it in `ps`."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.field.split())

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options, the short one first; none for a secret."""
        if self.is_secret:
            return ()
        long = "--" + self.name.replace(".", "-")
        return (self.option, long) if self.option else (long,)

    def value(self, config: BrokerConfig) -> str | None:
        """Return the value as text; None if it is unset or cannot be expressed in this unit (90 minutes in hours)."""
        value = attrgetter(*self.paths)(config)
        return None if value is None else self.kind.write(value)

    @property
    def default(self) -> str | None:
        """The default as text; None for the data directory, which has no default."""
        return None if self.field == "data" else self.value(DEFAULTS)

    def read(self, text: str) -> dict[str, object]:
        """Return the values by field. Raises ValueError for an invalid text."""
        value = self.kind.read(text.strip())
        if len(self.paths) == 1:
            return {self.paths[0]: value}
        assert isinstance(value, tuple)
        return dict(zip(self.paths, value, strict=True))
