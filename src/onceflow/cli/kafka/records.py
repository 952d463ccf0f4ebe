"""`onceflow produce` and `onceflow consume`: lines into a topic, records out of it, on any Kafka."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO

import click

from onceflow.cli.kafka.offset_range import OffsetRange, Place, resolve, to_offset_range, wanted_partitions
from onceflow.cli.kafka.record_layout import Layout, to_layout
from onceflow.cli.options import bootstrap_option
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.security import open_cluster, security
from onceflow.errors import OnceflowError

LINE_BYTES_MAX = 1_000_000
"""A longer line would not fit into a batch of a broker's default size, and be refused later with less to say."""


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

    writer = EventWriter(bootstrap, topic, security=security())
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
        key, separator, value = line.partition(os.fsencode(key_separator))
        if not separator:
            raise InvalidLine(f"line {number} has no '{key_separator}' between a key and a value: {_shown(line)}")
        return key, value
    return None, line


def _key_of_json(line: bytes, number: int, field: str) -> bytes:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidLine(f"line {number} is not JSON, which --key-field needs ({error}): {_shown(line)}") from error
    key = event.get(field) if isinstance(event, dict) else None
    if isinstance(key, str | int) and not isinstance(key, bool):
        with suppress(UnicodeEncodeError):
            return str(key).encode()
    raise InvalidLine(f"line {number} has no text or whole number in the field '{field}' to be its key: {_shown(line)}")


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace")
    return text if len(text) <= 80 else text[:80] + "…"


@click.command()
@click.argument("topic")
@click.option(
    "-o",
    "--offset",
    "asked",
    callback=to_offset_range,
    metavar="OFFSET",
    default="start",
    show_default=True,
    help="Where to begin and end, in each partition; see below.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition; may be given again. Without it all.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at what is the end now, instead of waiting for more.")
@click.option(
    "-f",
    "--format",
    "layout",
    default="text",
    show_default=True,
    callback=to_layout,
    metavar="text|json|LAYOUT",
    help="text: the value and a line feed. json: one object per line with topic, partition, offset, timestamp_ms, "
    "key, value and headers. Anything with a %: %t topic, %p partition, %o offset, %d timestamp in ms, %k key, "
    "%v value, %h headers, %% a percent sign, \\n and \\t.",
)
@click.option("--read-uncommitted", is_flag=True, help="Also records of open and aborted transactions.")
@bootstrap_option
def consume(
    topic: str,
    asked: OffsetRange,
    partitions: Sequence[int],
    count: int | None,
    exit_at_end: bool,
    layout: Layout,
    read_uncommitted: bool,
    bootstrap: str,
) -> None:
    """Print the records of TOPIC and wait for more; Ctrl-C ends it.

    Each partition comes in the order of its offsets. Records of open and aborted transactions are left out. In
    JSON a key or value that is not UTF-8 stands in base64, and beside it "key_encoding" or "value_encoding" says
    "base64"; no key or no value is null.

    \b
    OFFSET is one of
      start, end            the log's start, or its end: only what comes from now on
      47, +47, -47          that offset, so many after the start, the last so many offsets, of which
                            transaction markers and aborted records show nothing
      :end, :47             up to the present end, or up to an offset (which is not read)
      10:47, 47:end         from an offset up to another, or up to the present end
      @TIME, @TIME:TIME     from a time on, from one time up to another
      @TIME:end, @:TIME     from a time up to the present end, from the start up to a time
    TIME is ms or s (9 or 10 digits) since 1970, 2026-02-14, 2026-02-14T10:00:00Z, or a duration before
    now like -2h30m. As the second TIME, 2h30m counts from the first and -2h30m from now. A range with an
    end stops there.

    \b
    Examples:
      onceflow consume user_events --exit-at-end --format json
      onceflow consume user_events --offset -10 --partition 0 --count 10
      onceflow consume user_events --offset @-1h:end --format '%p %o %k %v\\n'
    """
    from onceflow.client.records import read_partitions

    read_committed = not read_uncommitted
    with stdout_may_close(), open_cluster(bootstrap) as cluster:
        wanted = wanted_partitions(cluster.require_topic(topic), partitions)
        begins, ends, is_bounded = resolve(cluster, topic, wanted, asked, read_committed=read_committed)
        if exit_at_end and is_bounded:
            _, now, _ = resolve(cluster, topic, wanted, OffsetRange(Place("end")), read_committed=read_committed)
            ends = {each: max(begins[each], min(end, now[each])) for each, end in ends.items()}
        bounds = ends if exit_at_end or is_bounded else None
        found = read_partitions(cluster, topic, begins, bounds, read_committed=read_committed)
        out = sys.stdout.buffer
        for partition, record in islice(found, count):
            out.write(layout(topic, partition, record))
            if bounds is None:
                out.flush()
        out.flush()
