"""What the value of a setting can be: how its text is read, checked and written."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onceflow.errors import OnceflowError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class SettingRefused(OnceflowError):
    """A setting's name or value is wrong: the broker does not start."""


class Kind(Protocol):
    """A type of values; `kafka_type` is its number in DescribeConfigs (ConfigResponse.ConfigType)."""

    @property
    def kafka_type(self) -> int: ...

    @property
    def metavar(self) -> str: ...

    def read(self, text: str) -> object:
        """The value that the fields get. Raises ValueError, which says what would be right."""
        ...

    def write(self, value: object) -> str | None:
        """The text of a value; None where this setting has no way to say it."""
        ...

    @property
    def allowed(self) -> str:
        """The values in words, for the documents."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number. `unit` is how much of the field's unit one of it is: hours of a field in milliseconds."""

    smallest: int
    largest: int = INT64_MAX
    unit: int = 1
    none: int | None = None
    """A value beside the range that stands for "none", -1 mostly; it has no unit."""
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
        return next(word for word, each in self.values.items() if each == value)

    @property
    def allowed(self) -> str:
        return " or ".join(self.values)


BOOLEAN = Choice({"true": True, "false": False}, kafka_type=1, is_any_case=True)
"""True and TRUE count as well, as in Kafka (ConfigDef.parseType)."""


@dataclass(frozen=True)
class CleanupPolicy:
    """`delete`, `compact` or both: two fields, whether it deletes and whether it compacts."""

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
class ImportPath:
    """`module:name` of something in Python."""

    kafka_type = 8
    metavar = "MODULE:NAME"

    def read(self, text: str) -> str:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
            raise ValueError(f"is not {self.allowed}")
        return text

    def write(self, value: object) -> str:
        return str(value)

    @property
    def allowed(self) -> str:
        return "MODULE:NAME"


@dataclass(frozen=True)
class ClusterId:
    """The id of a cluster, as long as the text of a UUID in base64 or shorter."""

    kafka_type = 2
    metavar = "ID"

    def read(self, text: str) -> str:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,22}", text):
            raise ValueError(f"is not {self.allowed}")
        return text

    def write(self, value: object) -> str | None:
        return None if value is None else str(value)

    @property
    def allowed(self) -> str:
        return "1 to 22 of the characters a-z, A-Z, 0-9, - and _"


@dataclass(frozen=True)
class Directory:
    """One directory; Kafka takes several, this broker has one."""

    kafka_type = 2
    metavar = "DIRECTORY"

    def read(self, text: str) -> Path:
        if not text.strip() or "," in text:
            raise ValueError("is not one directory; this broker keeps everything in one")
        return Path(text)

    def write(self, value: object) -> str:
        return str(value)

    @property
    def allowed(self) -> str:
        return "a directory"


_ADDRESS = re.compile(
    r"(?:PLAINTEXT://)?(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>[0-9]{1,5})", re.IGNORECASE
)


@dataclass(frozen=True)
class Address:
    """HOST:PORT or PLAINTEXT://HOST:PORT, an IPv6 host in brackets; without a host where `any_host` allows it.

    Listeners named in `besides` (a KRaft controller's) are passed over: this broker has no controller to talk to.
    """

    any_host: bool
    besides: Sequence[str] = ("CONTROLLER",)
    kafka_type = 2
    metavar = "HOST:PORT"

    def read(self, text: str) -> tuple[str, int]:
        listeners = [each.strip() for each in text.split(",")]
        ours = [each for each in listeners if each.partition("://")[0].upper() not in self.besides]
        match = _ADDRESS.fullmatch(ours[0]) if len(ours) == 1 else None
        if match is None or int(match["port"]) > 65535 or not (self.any_host or match["ipv6"] or match["host"]):
            raise ValueError(f"is not {self.allowed}")
        return match["ipv6"] or match["host"] or "0.0.0.0", int(match["port"])

    def write(self, value: object) -> str | None:
        return None if value is None else f"PLAINTEXT://{address_text(value)}"

    @property
    def allowed(self) -> str:
        return "HOST:PORT or PLAINTEXT://HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092"


def address_text(value: object) -> str:
    """HOST:PORT of (host, port), an IPv6 host in brackets."""
    assert isinstance(value, tuple)
    host, port = value
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


COUNT = Whole(1, INT32_MAX)
BYTES = Whole(1, INT32_MAX)
MS = Whole(0)
MS_POSITIVE = Whole(1)
MS_OR_NONE = Whole(0, none=-1)
SOCKET_BUFFER = Whole(1, INT32_MAX, none=-1)
