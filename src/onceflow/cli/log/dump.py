"""`onceflow log dump`: the content of log files as text or JSON, and whether they are intact."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import json_lines_option, refuse_together
from onceflow.cli.output import counted, readable, stdout_may_close
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.log.inspection import InspectedBatch
    from onceflow.wire.batch import BatchHeader, Record
    from onceflow.wire.message_sets import EntryHeader

Row = Mapping[str, Any]

_PARTITION_DIRECTORY = re.compile(r"(?P<topic>.+)-[0-9]+")


@click.group(cls=Commands)
def log() -> None:
    """Inspect log files without a broker."""


@log.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--records", is_flag=True, help="Show the records of a .log file instead of its batches.")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Start at this offset of a .log file.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Show at most N lines of each file.")
@click.option(
    "--topic",
    metavar="NAME",
    help="Topic of a .log file: records of __consumer_offsets, __transaction_state and __cluster_metadata are "
    "decoded.  [default: from the file's directory]",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["kafka", "first"]),
    default="kafka",
    show_default=True,
    help="kafka: formats 0, 1 and 2, distinguished by their magic byte. first: Kafka's first format (0.6), messages of "
    "length, magic, CRC and payload.",
)
@click.option("--verify", is_flag=True, help="Only check that each file is intact; exit with 1 if one is damaged.")
@json_lines_option
def dump(
    files: Sequence[Path],
    records: bool,
    offset: int | None,
    count: int | None,
    topic: str | None,
    format_name: str,
    verify: bool,
    as_json: bool,
) -> None:
    """Show the content of FILES: segments (.log), their indexes (.index, .timeindex, .txnindex), producer snapshots
    (.snapshot) and checkpoints, written by Kafka or by 'onceflow broker'.

    Files are only read, so those of a running broker can be shown too. The command stops at damage and prints its
    byte position; a batch with a wrong CRC is shown and marked. --verify checks more: every record, the order of the
    offsets, and an offset index against its .log file.

    \b
    Examples:
      onceflow log dump ./broker/visits-0/00000000000000000000.log --records --count 10
      onceflow log dump ./broker/__consumer_offsets-0/*.log --records --json
      onceflow log dump --verify ./broker/visits-0/*.log
    """
    if verify and (records or count is not None or offset is not None):
        raise click.UsageError(
            "--verify checks whole files and shows no lines; leave --records, --offset and --count out"
        )
    if format_name == "first":
        refuse_together(
            ["records", "offset", "topic"],
            "--format first has messages without offset and topic; leave --records, --offset and --topic out",
        )
    if verify:
        _verify_all(files, format_name, as_json)
        return
    with stdout_may_close():
        for path in files:
            rows = _rows(path, format_name, records, offset or 0, topic)
            _print(path, islice(rows, count), as_json, several=len(files) > 1)


def _print(path: Path, rows: Iterable[Row], as_json: bool, *, several: bool) -> None:
    if several and not as_json:
        click.echo(f"{path}:")
    for row in rows:
        click.echo(json.dumps({"file": str(path), **row}, ensure_ascii=False) if as_json else _as_text(row))


def _as_text(row: Row) -> str:
    shown = ((name, value) for name, value in row.items() if value is not None and value is not False)
    return "  ".join(name if value is True else f"{name} {_value_text(name, value)}" for name, value in shown)


def _value_text(name: str, value: object) -> str:
    if name.endswith("timestamp_ms") and isinstance(value, int) and 0 <= value < 253_402_300_800_000:
        return f"{value} ({datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z)"
    if isinstance(value, Mapping):
        return f"{value['type']}({_as_text({key: field for key, field in value.items() if key != 'type'})})"
    is_word = isinstance(value, str) and value.isprintable() and value and " " not in value
    return str(value) if is_word else json.dumps(value, ensure_ascii=False)


def _rows(path: Path, format_name: str, records: bool, offset: int, topic: str | None) -> Iterator[Row]:
    from onceflow.log import inspection
    from onceflow.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX
    from onceflow.wire.first_messages import HEADER_BYTES

    if format_name == "first":
        for position, payload in inspection.first_format_messages(path, inspection.mapped(path)):
            yield {"position": position, "size_bytes": len(payload) + HEADER_BYTES, **readable("payload", payload)}
        return
    kind = inspection.kind_of(path)
    if kind == LOG_SUFFIX:
        yield from _log_rows(path, records, offset, topic)
    elif kind == SNAPSHOT_SUFFIX:
        yield from (entry._asdict() for entry in inspection.snapshot_entries(path))
    elif kind == inspection.OFFSETS:
        yield from (_named(("topic", "partition", "offset"), line) for line in inspection.checkpoint_lines(path))
    elif kind == inspection.LEADER_EPOCHS:
        yield from (_named(("epoch", "start_offset"), line[1:]) for line in inspection.checkpoint_lines(path))
    else:
        yield from (_index_row(path, kind, *entry) for entry in inspection.index_entries(path))


def _named(names: Sequence[str], values: Sequence[Any]) -> Row:
    return dict(zip(names, values, strict=True))


def _index_row(path: Path, kind: str, position: int, entry: tuple[int, ...]) -> Row:
    from onceflow.log.inspection import base_offset_of
    from onceflow.log.transactions import AbortedTransaction, TransactionIndex

    if kind == TransactionIndex.suffix:
        return AbortedTransaction._make(entry)._asdict()
    first, second = entry
    base_offset = base_offset_of(path)
    if kind == ".index":
        return {"offset": base_offset + first, "position": second}
    return {"timestamp_ms": first, "offset": base_offset + second}


def _log_rows(path: Path, records: bool, offset: int, topic: str | None) -> Iterator[Row]:
    from onceflow.log import inspection

    match = _PARTITION_DIRECTORY.fullmatch(path.absolute().parent.name)
    topic = topic or (match["topic"] if match else None)
    content = inspection.mapped(path)
    for batch in inspection.log_batches(path, content):
        if inspection.offset_range(batch.header)[1] < offset:
            continue
        if records:
            yield from _record_rows(path, content, batch, offset, topic)
        else:
            yield _batch_row(batch)


def _batch_row(batch: "InspectedBatch") -> Row:
    from onceflow.wire.message_sets import EntryHeader

    header = batch.header
    row = _message_row(header) if isinstance(header, EntryHeader) else _format_2_row(header)
    return {
        "position": batch.position,
        "size_bytes": header.size_bytes,
        "format": header.magic,
        **row,
        "log_append_time": header.is_log_append_time,
        "crc": f"{header.crc:08x}",
        "problem": batch.problem,
    }


def _message_row(header: "EntryHeader") -> dict[str, Any]:
    return {
        "offset": header.offset,
        "codec": _codec_name(header),
        "timestamp_ms": header.timestamp_ms if header.magic else None,
    }


def _format_2_row(header: "BatchHeader") -> dict[str, Any]:
    has_producer = header.producer_id >= 0
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "codec": _codec_name(header),
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id if has_producer else None,
        "producer_epoch": header.producer_epoch if has_producer else None,
        "base_sequence": header.base_sequence if header.base_sequence >= 0 else None,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }


def _codec_name(header: "BatchHeader | EntryHeader") -> str:
    from onceflow.wire.errors import MalformedBatch

    try:
        return header.codec.name.lower()
    except MalformedBatch:
        return f"unknown ({header.attributes & 7})"


def _record_rows(
    path: Path, content: memoryview, batch: "InspectedBatch", offset: int, topic: str | None
) -> Iterator[Row]:
    from onceflow.log import inspection
    from onceflow.wire.batch import BatchHeader
    from onceflow.wire.errors import WireError

    if batch.problem is not None:
        raise inspection.Damaged(path, batch.position, batch.problem)
    try:
        records = inspection.records_at(content, batch)
    except WireError as error:
        raise inspection.Damaged(path, batch.position, str(error)) from error
    is_control = isinstance(batch.header, BatchHeader) and batch.header.is_control
    for record in records:
        if record.offset >= offset:
            yield {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                **_content(record, topic, is_control=is_control),
            }


def _content(record: "Record", topic: str | None, *, is_control: bool) -> dict[str, Any]:
    from onceflow.cli.log.records import decode_control_record, decode_record

    decoded = decode_control_record(record) if is_control else decode_record(topic, record)
    if decoded is not None:
        return decoded
    headers = [{"key": key, **readable("value", value)} for key, value in record.headers]
    return {**readable("key", record.key), **readable("value", record.value), "headers": headers or None}


def _verify_all(files: Sequence[Path], format_name: str, as_json: bool) -> None:
    """Print whether each file is intact. Raises OnceflowError if one is damaged."""
    from onceflow.log.inspection import Damaged

    damaged = 0
    for path in files:
        row: dict[str, Any] = {"file": str(path), "intact": True}
        try:
            row["text"] = _verified(path, format_name)
        except Damaged as error:
            damaged += 1
            row |= {"intact": False, "position": error.position, "text": str(error)}
        text = f"{path} is intact: {row['text']}" if row["intact"] else row["text"]
        click.echo(json.dumps(row) if as_json else text)
    sys.stdout.flush()
    if damaged:
        raise OnceflowError(f"{damaged} of {counted(len(files), 'file')} damaged; see the lines above")


def _verified(path: Path, format_name: str) -> str:
    """Return a summary of the checked content. Raises Damaged."""
    from onceflow.log import inspection
    from onceflow.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX

    if format_name == "first":
        return counted(sum(1 for _ in inspection.first_format_messages(path, inspection.mapped(path))), "message")
    kind = inspection.kind_of(path)
    if kind == LOG_SUFFIX:
        return _verified_log(path)
    if kind == SNAPSHOT_SUFFIX:
        return f"producer entries: {len(inspection.snapshot_entries(path))}"
    if kind in (inspection.OFFSETS, inspection.LEADER_EPOCHS):
        return counted(len(inspection.checkpoint_lines(path)), "line")
    return f"index entries: {inspection.verify_index(path)}"


def _verified_log(path: Path) -> str:
    from onceflow.log import inspection

    count = 0
    last = inspection.base_offset_of(path) - 1
    content = inspection.mapped(path)
    for batch in inspection.verified_batches(path, content):
        count, last = count + 1, inspection.offset_range(batch.header)[1]
    return f"{len(content)} bytes, {counted(count, 'batch')}, the last offset is {last}"
