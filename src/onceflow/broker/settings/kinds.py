"""Types of setting values: parsing, validation and formatting."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onceflow.errors import OnceflowError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class SettingRefused(OnceflowError):
    """A setting's name or value is invalid: the broker does not start."""


class Kind(Protocol):
    """A type of values; `kafka_type` is its number in DescribeConfigs (ConfigResponse.ConfigType)."""

    @property
    def kafka_type(self) -> int: ...

    @property
    def metavar(self) -> str: ...

    def read(self, text: str) -> object:
        """Parse a value. Raises ValueError with the allowed values."""
        ...

    def write(self, value: object) -> str | None:
        """Return the text of a value; None if this setting cannot express it."""
        ...

    @property
    def allowed(self) -> str:
        """The allowed values in words, for messages and documentation."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number. `unit` is its size in the field's unit, such as an hour in milliseconds."""

    smallest: int
    largest: int = INT64_MAX
    unit: int = 1
    none: int | None = None
    """A value outside the range that means "none", usually -1; it has no unit."""
    metavar = "NUMBER"

    @property
    def kafka_type(self) -> int:
        return 3 if self.largest <= INT32_MAX else 5

    def read(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise ValueError(f"is not {self.allowed}")
        number = int(text)
        if number == self.none:
            return number
        if not self.smallest <= number <= self.largest:
            raise ValueError(f"is not {self.allowed}")
        return min(number * self.unit, INT64_MAX)

    def write(self, value: object) -> str | None:
        assert isinstance(value, int)
        if value == self.none:
            return str(value)
        number, rest = divmod(value, self.unit)
        return str(number) if not rest and number <= self.largest else None

    @property
    def allowed(self) -> str:
        text = f"a whole number from {self.smallest}" + ("" if self.largest == INT64_MAX else f" to {self.largest}")
        return text if self.none is None else f"{text}, or {self.none} for none"


@dataclass(frozen=True)
class Short(Whole):
    """A whole number that is a short in Kafka."""

    largest: int = 2**15 - 1

    @property
    def kafka_type(self) -> int:
        return 4


@dataclass(frozen=True)
class Fraction:
    """A number from 0 to 1."""

    kafka_type = 6
    metavar = "NUMBER"

    def read(self, text: str) -> float:
        number = float(text) if re.fullmatch(r"[0-9.eE-]+", text) else math.nan
        if not 0 <= number <= 1:
            raise ValueError(f"is not {self.allowed}")
        return number

    def write(self, value: object) -> str:
        return str(value)

    @property
    def allowed(self) -> str:
        return "a number from 0 to 1"


@dataclass(frozen=True)
class Choice:
    """One of a few words, each with its value."""

    values: Mapping[str, object]
    kafka_type: int = 2
    is_any_case: bool = False

    @property
    def metavar(self) -> str:
        return "|".join(self.values)

    def read(self, text: str) -> object:
        word = text.lower() if self.is_any_case else text
        if word not in self.values:
            raise ValueError(f"is not {self.allowed}")
        return self.values[word]

    def write(self, value: object) -> str:
        return next(word for word, meaning in self.values.items() if meaning == value)

    @property
    def allowed(self) -> str:
        return " or ".join(self.values)


BOOLEAN = Choice({"true": True, "false": False}, kafka_type=1, is_any_case=True)
"""Any case is accepted, as in Kafka (ConfigDef.parseType)."""


@dataclass(frozen=True)
class CleanupPolicy:
    """`delete`, `compact` or both; sets two fields."""

    kafka_type = 7
    metavar = "POLICY"

    def read(self, text: str) -> tuple[bool, bool]:
        words = {word.strip() for word in text.split(",")}
        if not words <= {"delete", "compact"} or not words:
            raise ValueError(f"is not {self.allowed}")
        return "delete" in words, "compact" in words

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(word for word, chosen in zip(("delete", "compact"), value, strict=True) if chosen)

    @property
    def allowed(self) -> str:
        return "delete, compact or delete,compact"


@dataclass(frozen=True)
class Word:
    """Text of which all matches a pattern; `allowed` describes it in messages and pages."""

    pattern: str
    allowed: str
    metavar: str
    kafka_type: int = 2

    def read(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"is not {self.allowed}")
        return text

    def write(self, value: object) -> str | None:
        return None if value is None else str(value)


IMPORT_PATH = Word(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "MODULE:NAME", "MODULE:NAME", kafka_type=8)
"""`module:name` of a Python object."""
HOST = Word(r"[A-Za-z0-9.:_-]+", "a host name or an IP address", "HOST")
"""Host name or IP address to listen on."""
CLUSTER_ID = Word(r"[a-zA-Z0-9_-]{1,22}", "1 to 22 of the characters a-z, A-Z, 0-9, - and _", "ID")
"""Id of a cluster, at most as long as a UUID in base64."""

RACK = Word(r"[^\x00-\x1f]{1,249}", "a name of up to 249 characters", "NAME")
"""Place of a broker, such as an availability zone."""

ZOOKEEPER = Word(
    r"[^\s/,]+(,[^\s/,]+)*(/[^\s,]*)?", "HOST:PORT,HOST:PORT/CHROOT, such as 127.0.0.1:2181/kafka", "HOST:PORT/CHROOT"
)
"""Addresses of ZooKeeper's servers, and the node below which the cluster has its own."""


@dataclass(frozen=True)
class Directory:
    """One directory; Kafka takes several."""

    kafka_type = 2
    metavar = "DIRECTORY"

    def read(self, text: str) -> Path:
        if not text.strip() or "," in text:
            raise ValueError("is not one directory; this broker stores all data in one")
        return Path(text)

    def write(self, value: object) -> str:
        return str(value)

    @property
    def allowed(self) -> str:
        return "a directory"


COUNT = Whole(1, INT32_MAX)
BYTES = Whole(1, INT32_MAX)
MS = Whole(0)
MS_POSITIVE = Whole(1)
MS_OR_NONE = Whole(0, none=-1)
SOCKET_BUFFER = Whole(1, INT32_MAX, none=-1)
