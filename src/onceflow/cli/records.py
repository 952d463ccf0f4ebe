"""`onceflow produce` and `onceflow consume`: lines into a topic, records out of it, on any Kafka."""

import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING

import click

from onceflow.cli.options import bootstrap_option
from onceflow.cli.output import counted, stdout_may_close
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.metadata import TopicMetadata
    from onceflow.wire.batch import Record

LINE_BYTES_MAX = 1_000_000
"""librdkafka's message.max.bytes, which a line above it would only meet later and with less to say."""


class InvalidLine(OnceflowError):
    """A line of the input that cannot become a record as the options ask."""


@click.command()
@click.argument("topic")
@click.option("--key-field", metavar="NAME", help="Each line is a JSON object; the value of its field NAME is the key.")
@click.option("--key-separator", metavar="TEXT", help="Each line is KEY, then TEXT, then the value.")
@bootstrap_option
def produce(topic: str, key_field: str | None, key_separator: str | None, bootstrap: str) -> None:
    """Write each line of standard input to TOPIC as one record, and wait until all are acknowledged.

    A key decides the partition, the same one that Java's client chooses; without keys records are spread. The
    number of acknowledged records goes to standard error. A line without the key that is asked for stops the
    command; the lines before it are written.

    \b
    Example:
      echo '{"uid": "ada", "click_count": 1}' | onceflow produce user_events --key-field uid
    """
    if key_field is not None and key_separator is not None:
        raise click.UsageError("--key-field and --key-separator both say where the key is: give one of them")
    if key_separator == "":
        raise click.BadParameter("the text between key and value must not be empty", param_hint="--key-separator")
    from onceflow.client.producer import EventWriter

    writer = EventWriter(bootstrap, topic)
    try:
        with writer:
            for number, line in enumerate(_lines(sys.stdin.buffer), start=1):
                writer.write(*_key_and_value(line, number, key_field, key_separator))
    finally:
        click.echo(f"{counted(writer.delivered, 'record')} acknowledged by {bootstrap}", err=True)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 2):
        number += 1
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > LINE_BYTES_MAX:
            raise InvalidLine(f"line {number} is longer than {LINE_BYTES_MAX} bytes, the most that a record may have")
        yield line


def _key_and_value(
    line: bytes, number: int, key_field: str | None, key_separator: str | None
) -> tuple[bytes | None, bytes]:
    if key_field is not None:
        return _key_of_json(line, number, key_field), line
    if key_separator is not None:
        key, separator, value = line.partition(key_separator.encode())
        if not separator:
            raise InvalidLine(f"line {number} has no '{key_separator}' between a key and a value: {_shown(line)}")
        return key, value
    return None, line


def _key_of_json(line: bytes, number: int, field: str) -> bytes:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise InvalidLine(f"line {number} is not JSON, which --key-field needs ({error}): {_shown(line)}") from error
    key = event.get(field) if isinstance(event, dict) else None
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidLine(
            f"line {number} has no text or whole number in the field '{field}' to be its key: {_shown(line)}"
        )
    return str(key).encode()


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace")
    return text if len(text) <= 80 else text[:80] + "…"


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where to begin in each partition: `kind` is start, end, exact, after_start, before_end or timestamp."""

    kind: str
    number: int = 0


_SIGNS: Mapping[str, str] = {"+": "after_start", "-": "before_end", "@": "timestamp"}


def _to_start_at(context: click.Context, parameter: click.Parameter, value: str) -> StartAt:
    """rpk's words for an offset: start, end, 47, +47, -47, @1430204612405."""
    if value in ("start", "end"):
        return StartAt(value)
    kind = _SIGNS.get(value[:1], "exact")
    digits = value if kind == "exact" else value[1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise click.BadParameter(f"'{value}' is none of start, end, 47, +47, -47, @1430204612405 (ms)")
    return StartAt(kind, int(digits))


@click.command()
@click.argument("topic")
@click.option(
    "--offset",
    "start_at",
    callback=_to_start_at,
    metavar="OFFSET",
    default="start",
    show_default=True,
    help="Where to begin, in each partition: start, end, 47 (that offset), +47 (so many after the start), "
    "-47 (the last so many), @1430204612405 (the first record of that time or later, in ms since 1970).",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition; may be given again. Without it all.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at what is the end now, instead of waiting for more.")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: the value and a line feed. json: one object per line with topic, partition, offset, timestamp_ms, "
    "key, value and headers.",
)
@bootstrap_option
def consume(
    topic: str,
    start_at: StartAt,
    partitions: Sequence[int],
    count: int | None,
    exit_at_end: bool,
    format_name: str,
    bootstrap: str,
) -> None:
    """Print the records of TOPIC and wait for more; Ctrl-C ends it.

    Each partition comes in the order of its offsets. Records of open and aborted transactions are left out. In
    JSON a key or value that is not UTF-8 stands in base64, and beside it "key_encoding" or "value_encoding" says
    "base64"; no key or no value is null.

    \b
    Examples:
      onceflow consume user_events --exit-at-end --format json
      onceflow consume user_events --offset -10 --partition 0 --count 10
    """
    from onceflow.client.cluster import Cluster
    from onceflow.client.records import read_partitions

    with stdout_may_close(), Cluster(bootstrap) as cluster:
        wanted = _wanted_partitions(cluster.require_topic(topic), partitions)
        begins, ends = _begins_and_ends(cluster, topic, wanted, start_at)
        out = sys.stdout.buffer
        for partition, record in islice(read_partitions(cluster, topic, begins, ends if exit_at_end else None), count):
            out.write(_as_json(topic, partition, record) if format_name == "json" else (record.value or b"") + b"\n")
            if not exit_at_end:
                out.flush()
        out.flush()


def _wanted_partitions(found: "TopicMetadata", partitions: Sequence[int]) -> list[int]:
    for partition in partitions:
        if partition not in found.partitions:
            raise click.BadParameter(
                f"{found.name} has {counted(len(found.partitions), 'partition')}, counted from 0, not {partition}",
                param_hint="--partition",
            )
    return sorted(set(partitions) or found.partitions)


def _begins_and_ends(
    cluster: "Cluster", topic: str, partitions: Sequence[int], start_at: StartAt
) -> tuple[dict[int, int], dict[int, int]]:
    from onceflow.client.cluster import EARLIEST, LATEST
    from onceflow.client.errors import OffsetOutOfRange

    starts = cluster.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
    ends = {key: found.offset for key, found in cluster.list_offsets(topic, dict.fromkeys(partitions, LATEST)).items()}
    found_at = {}
    if start_at.kind == "timestamp":
        found_at = cluster.list_offsets(topic, dict.fromkeys(partitions, start_at.number))
    begins = {}
    for partition, end in ends.items():
        start = starts[partition].offset
        if start_at.kind == "exact" and not start <= start_at.number <= end:
            raise OffsetOutOfRange(topic, partition, start_at.number, start, end)
        at_timestamp = found_at[partition].offset if found_at else -1
        begins[partition] = {
            "start": start,
            "end": end,
            "exact": start_at.number,
            "after_start": min(start + start_at.number, end),
            "before_end": max(end - start_at.number, start),
            "timestamp": end if at_timestamp < 0 else at_timestamp,
        }[start_at.kind]
    return begins, ends


def _as_json(topic: str, partition: int, record: "Record") -> bytes:
    shown = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_readable("key", record.key),
        **_readable("value", record.value),
        "headers": [{"key": key, **_readable("value", value)} for key, value in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _readable(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(content or b"").decode(), f"{name}_encoding": "base64"}
