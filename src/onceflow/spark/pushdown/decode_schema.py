"""Schema of option `decode`, as in SQL: `uid STRING NOT NULL, click_count INT, price DECIMAL(10, 2)`."""

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types

from onceflow.spark.errors import WrongOption

DECODE = "decode"
DECODER = "decoder"
DECODER_OPTIONS = "decoderOptions"
CORRUPT_RECORD = "_corrupt_record"
CORRUPT_REASON = "_corrupt_reason"

Kind = Literal[
    "STRING", "TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "DOUBLE", "FLOAT", "BOOLEAN", "DATE", "TIMESTAMP"
]

BITS: dict[Kind, int] = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
"""Whole number types and their sizes."""

KINDS: dict[str, Kind] = {
    "STRING": "STRING",
    "TINYINT": "TINYINT",
    "BYTE": "TINYINT",
    "SMALLINT": "SMALLINT",
    "SHORT": "SMALLINT",
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "LONG": "BIGINT",
    "DECIMAL": "DECIMAL",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "REAL": "FLOAT",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
"""Names of the types in Spark SQL."""

DECIMAL_DIGITS_MAX = 38

_SPARK_TYPES: dict[Kind, types.DataType] = {
    "STRING": types.StringType(),
    "TINYINT": types.ByteType(),
    "SMALLINT": types.ShortType(),
    "INT": types.IntegerType(),
    "BIGINT": types.LongType(),
    "DOUBLE": types.DoubleType(),
    "FLOAT": types.FloatType(),
    "BOOLEAN": types.BooleanType(),
    "DATE": types.DateType(),
    "TIMESTAMP": types.TimestampType(),
}

_FIELD = re.compile(
    r"""(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+)) \s* (?::\s*|\s) \s*
    (?P<type>[A-Za-z_]+) \s* (?:\(\s*(?P<arguments>[^()]*?)\s*\))? (?P<required>\s+NOT\s+NULL)?""",
    re.VERBOSE | re.IGNORECASE,
)
_NAME = re.compile(r'[^"\\\x00-\x1f]+')
"""Field names that msgspec supports."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the schema; only a DECIMAL has precision and scale."""

    name: str
    kind: Kind
    precision: int = 0
    scale: int = 0
    required: bool = False

    @property
    def spark_type(self) -> types.DataType:
        """Type of the column."""
        return types.DecimalType(self.precision, self.scale) if self.kind == "DECIMAL" else _SPARK_TYPES[self.kind]


def split_list(text: str) -> list[str]:
    """Split at the commas outside brackets and quotes; each part is stripped."""
    parts: list[str] = []
    begin = depth = 0
    quote = ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "(<":
            depth += 1
        elif character in ")>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[begin:index].strip())
            begin = index + 1
    return [*parts, text[begin:].strip()]


def parse_schema(text: str) -> tuple[Field, ...]:
    """Parse the schema. Raises WrongOption."""
    fields = tuple(_parse_field(part) for part in split_list(text))
    seen: dict[str, str] = {}
    for field in fields:
        first = seen.setdefault(field.name.lower(), field.name)
        if first is not field.name:
            raise WrongOption(
                f"option {DECODE} has the fields {first!r} and {field.name!r}, which are equal to Spark; rename one"
            )
    return fields


def _parse_field(part: str) -> Field:
    field = _FIELD.fullmatch(part)
    if field is None:
        name = part.split()[0].strip(":") if part else ""
        _refuse_nested(name, part)
        raise WrongOption(
            f"option {DECODE}: {part!r} is not a field like click_count INT, `a name` STRING or price DECIMAL(10, 2)"
        )
    name = field["plain"] or field["quoted"].replace("``", "`")
    if not _NAME.fullmatch(name):
        raise WrongOption(
            f"option {DECODE}: field {name!r} has a quote, a backslash or a control character in its name"
        )
    kind = _kind(name, field["type"])
    precision, scale = _digits(name, field["arguments"]) if kind == "DECIMAL" else (0, 0)
    if kind != "DECIMAL" and field["arguments"] is not None:
        raise WrongOption(f"option {DECODE}: field {name!r} has {part!r}, and {kind} takes no brackets")
    return Field(name, kind, precision, scale, field["required"] is not None)


def _refuse_nested(name: str, part: str) -> None:
    if "<" in part:
        raise WrongOption(
            f"option {DECODE}: field {name!r} is an array, a struct or a map, which are not supported; decode it as "
            f"{name} STRING, its JSON text, and apply Spark's own from_json"
        )


def _kind(name: str, given: str) -> Kind:
    kind = KINDS.get(given.upper())
    if kind is not None:
        return kind
    nearest = difflib.get_close_matches(given.upper(), KINDS, n=1, cutoff=0.6)
    remedy = f"did you mean {nearest[0]}?" if nearest else f"the types are {', '.join(dict.fromkeys(KINDS.values()))}"
    raise WrongOption(f"option {DECODE}: field {name!r} has the type {given}, which is not supported; {remedy}")


def _digits(name: str, arguments: str | None) -> tuple[int, int]:
    """Return precision and scale; plain DECIMAL is DECIMAL(10, 0), as in SQL."""
    if arguments is None:
        return 10, 0
    numbers = [part.strip() for part in arguments.split(",")]
    if len(numbers) <= 2 and all(re.fullmatch(r"[0-9]{1,3}", number) for number in numbers):
        precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else 0
        if 0 < precision <= DECIMAL_DIGITS_MAX and scale <= precision:
            return precision, scale
    raise WrongOption(
        f"option {DECODE}: field {name!r} has DECIMAL({arguments}); it takes the number of digits, at most "
        f"{DECIMAL_DIGITS_MAX}, and how many of them are after the point, as in DECIMAL(10, 2)"
    )
