"""`onceflow produce` and `onceflow consume`: write and read records, on any Kafka."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

import click

from onceflow.cli.kafka.offset_range import OffsetRange, Place, resolve, to_offset_range, wanted_partitions
from onceflow.cli.notes import note, quiet_option
from onceflow.cli.options import bootstrap_option, refuse_together
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.record_layout import Layout, to_layout
from onceflow.cli.security import open_cluster, security
from onceflow.cli.stop_signals import signals_as_interrupt
from onceflow.errors import OnceflowError

LINE_BYTES_MAX = 1_000_000
"""Limit of a line: a longer one does not fit into a batch of the default maximum size."""


class InvalidLine(OnceflowError):
    """Input line that cannot become a record with the given options."""


def _to_headers(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[tuple[str, bytes]]:
    headers = [value.partition("=") for value in values]
    for name, separator, _ in headers:
        if not name or not separator:
            raise click.BadParameter(f"'{name}' is not a valid header; write NAME=VALUE")
    return [(name, os.fsencode(value)) for name, _, value in headers]


def _with_nulls(record: tuple[bytes | None, bytes], null_marker: str | None) -> tuple[bytes | None, bytes | None]:
    if null_marker is None:
        return record
    key, value = (None if field == os.fsencode(null_marker) else field for field in record)
    return key, value


@click.command()
@click.argument("topic")
@click.option("--key-field", metavar="NAME", help="Each line is a JSON object; its field NAME is the key.")
@click.option("--key-separator", metavar="TEXT", help="Each line is KEY, then TEXT, then the value.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Write all records to partition N, whatever their keys.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_to_headers,
    metavar="NAME=VALUE",
    help="Header of every record; may be repeated.",
)
@click.option(
    "--null-marker",
    metavar="TEXT",
    help="A key or value that equals TEXT is written as null; a null value is a tombstone.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Skip the first N lines, to resume after an error.",
)
@quiet_option
@bootstrap_option
def produce(
    topic: str,
    key_field: str | None,
    key_separator: str | None,
    partition: int | None,
    headers: Sequence[tuple[str, bytes]],
    null_marker: str | None,
    skip: int,
    bootstrap: str,
) -> None:
    """Write each line of standard input to TOPIC as one record, and wait until all are acknowledged.

    The key decides the partition, as in Kafka's Java client; records without a key are spread over all. The number of
    acknowledged records goes to standard error. The command stops at a line that lacks the requested key; the lines
    before it are written.

    \b
    Examples:
      echo '{"uid": "ada", "click_count": 1}' | onceflow produce user_events --key-field uid
      echo 'ada:NULL' | onceflow produce latest --key-separator : --null-marker NULL
    """
    if key_field is not None and key_separator is not None:
        raise click.UsageError("--key-field and --key-separator exclude each other")
    if key_separator == "":
        raise click.BadParameter("the separator must not be empty", param_hint="--key-separator")
    from onceflow.client.producer import EventWriter

    if partition is not None:
        with open_cluster(bootstrap) as cluster:
            wanted_partitions(cluster.require_topic(topic), [partition])
    writer = EventWriter(bootstrap, topic, security=security(), notify=note)
    try:
        with writer:
            for number, line in islice(enumerate(_lines(sys.stdin.buffer), start=1), skip, None):
                key, value = _with_nulls(_key_and_value(line, number, key_field, key_separator), null_marker)
                writer.write(key, value, partition=partition, headers=headers)
    finally:
        note(f"{counted(writer.delivered, 'record')} acknowledged by {bootstrap}")


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 2):
        number += 1
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > LINE_BYTES_MAX:
            raise InvalidLine(f"line {number} is longer than {LINE_BYTES_MAX} bytes, the maximum of a record")
        yield line


def _key_and_value(
    line: bytes, number: int, key_field: str | None, key_separator: str | None
) -> tuple[bytes | None, bytes]:
    if key_field is not None:
        return _key_of_json(line, number, key_field), line
    if key_separator is not None:
        key, separator, value = line.partition(os.fsencode(key_separator))
        if not separator:
            raise InvalidLine(f"line {number} has no separator '{key_separator}': {_shown(line)}")
        return key, value
    return None, line


def _key_of_json(line: bytes, number: int, field: str) -> bytes:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidLine(f"line {number} is not valid JSON ({error}): {_shown(line)}") from error
    key = event.get(field) if isinstance(event, dict) else None
    if isinstance(key, str | int) and not isinstance(key, bool):
        with suppress(UnicodeEncodeError):
            return str(key).encode()
    raise InvalidLine(f"line {number} has no key: field '{field}' must be text or an integer: {_shown(line)}")


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace")
    return text if len(text) <= 80 else text[:80] + "…"


def _consume_as_member(
    topic: str,
    zookeeper: str | None,
    config: Path | None,
    group: str | None,
    asked: OffsetRange,
    count: int | None,
    layout: Layout,
) -> None:
    """Print records as a member of a group in ZooKeeper; commit at the end what was printed."""
    if config is not None and zookeeper is None:
        raise click.UsageError("--zookeeper-config has no effect without --zookeeper")
    if zookeeper is None:
        raise click.UsageError("--group needs --zookeeper; without both, every record of the topic is read")
    if group is None:
        raise click.UsageError("--zookeeper needs --group")
    refuse_together(
        ("partitions", "exit_at_end", "read_uncommitted", "bootstrap"),
        "--partition, --exit-at-end, --read-uncommitted and --bootstrap have no effect with --zookeeper",
    )
    from onceflow.client.classic import ConsumerConnector
    from onceflow.client.librdkafka import librdkafka_settings
    from onceflow.wire.batch import Record
    from onceflow.zookeeper.reach import require_listening

    resets = {OffsetRange(Place("start")): "smallest", OffsetRange(Place("end")): "largest"}
    if asked not in resets:
        raise click.UsageError("--offset is start or end with --zookeeper")
    settings = {
        **({} if config is None else _consumer_settings(config)),
        "zookeeper.connect": zookeeper,
        "group.id": group,
        "auto.offset.reset": resets[asked],
        **librdkafka_settings(security()),
    }
    require_listening(zookeeper)
    with stdout_may_close(), signals_as_interrupt(), ConsumerConnector(settings) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        out = sys.stdout.buffer
        for read in islice(stream, count):
            record = Record(read.offset, read.timestamp_ms, read.key, read.message, read.headers)
            out.write(layout(read.topic, read.partition, record))
            out.flush()


def _consumer_settings(path: Path) -> dict[str, str]:
    """Return the settings in a file, which the consumer checks. Raises click.UsageError."""
    from onceflow.client.registry.settings import read_properties
    from onceflow.client.settings import InvalidSetting

    try:
        return read_properties(path)
    except InvalidSetting as error:
        raise click.UsageError(f"--zookeeper-config {error}") from error


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
    help="Where to start and stop in each partition (see OFFSET above).",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition; may be repeated.  [default: all]",
)
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the current end instead of waiting for more records.")
@click.option(
    "-f",
    "--format",
    "layout",
    default="text",
    show_default=True,
    callback=to_layout,
    metavar="text|json|LAYOUT",
    help="text: the value and a line feed. json: one object per line with topic, partition, offset, timestamp_ms, "
    "key, value and headers. LAYOUT: %t topic, %p partition, %o offset, %d timestamp in ms, %k key, "
    "%v value, %h headers, %% a percent sign, \\n and \\t.",
)
@click.option("--read-uncommitted", is_flag=True, help="Include records of open and aborted transactions.")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT/CHROOT",
    help="Read as a member of --group that shares the partitions through this ZooKeeper.",
)
@click.option(
    "--zookeeper-config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Settings of a consumer for --zookeeper, such as zookeeper.ssl.* and zookeeper.digest.",
)
@click.option(
    "--group", metavar="NAME", help="Group with --zookeeper; its offsets in ZooKeeper are read and committed."
)
@bootstrap_option
def consume(
    topic: str,
    asked: OffsetRange,
    partitions: Sequence[int],
    count: int | None,
    exit_at_end: bool,
    layout: Layout,
    read_uncommitted: bool,
    zookeeper: str | None,
    zookeeper_config: Path | None,
    group: str | None,
    bootstrap: str,
) -> None:
    """Print the records of TOPIC and wait for more; Ctrl-C ends it.

    Records of one partition are printed in offset order. Records of open and aborted transactions are left out. In
    JSON, a key or value that is not UTF-8 is in base64, marked by "key_encoding" or "value_encoding"; a missing one
    is null.

    \b
    OFFSET is one of
      start, end            the start of the log, or its end (only new records)
      47, +47, -47          offset 47, 47 offsets after the start, the last 47 offsets (transaction
                            markers and aborted records take offsets too)
      :end, :47             from the start to the current end, or to offset 47 (exclusive)
      10:47, 47:end         from offset 10 to offset 47, or from 47 to the current end
      @TIME, @TIME:TIME     from a time, from one time to another
      @TIME:end, @:TIME     from a time to the current end, from the start to a time
    TIME is ms or s (9 or 10 digits) since 1970, 2026-02-14, 2026-02-14T10:00:00Z, or a duration before
    now like -2h30m. As the second TIME, 2h30m counts from the first and -2h30m from now.

    \b
    Examples:
      onceflow consume user_events --exit-at-end --format json
      onceflow consume user_events --offset -10 --partition 0 --count 10
      onceflow consume user_events --offset @-1h:end --format '%p %o %k %v\\n'

    With --zookeeper and --group the command is a member of a group, as Kafka's console consumer before 2.0. Members
    continue at the committed offsets. In a partition without one they begin at --offset, which is start or end.
    """
    if {zookeeper, zookeeper_config, group} != {None}:
        _consume_as_member(topic, zookeeper, zookeeper_config, group, asked, count, layout)
        return
    from onceflow.client.records import read_partitions

    read_committed = not read_uncommitted
    with stdout_may_close(), open_cluster(bootstrap) as cluster:
        wanted = wanted_partitions(cluster.require_topic(topic), partitions)
        starts, ends, is_bounded = resolve(cluster, topic, wanted, asked, read_committed=read_committed)
        if exit_at_end and is_bounded:
            _, now, _ = resolve(cluster, topic, wanted, OffsetRange(Place("end")), read_committed=read_committed)
            ends = {number: max(starts[number], min(end, now[number])) for number, end in ends.items()}
        bounds = ends if exit_at_end or is_bounded else None
        records = read_partitions(cluster, topic, starts, bounds, read_committed=read_committed)
        out = sys.stdout.buffer
        for partition, record in islice(records, count):
            out.write(layout(topic, partition, record))
            if bounds is None:
                out.flush()
        out.flush()
