"""A bit flips in a file while the broker is down: it refuses to start, naming the damage, or serves what is whole.

The stated rule (docs/log-format.md): of a damaged log everything before the damaged batch is served and nothing from it
on; other files beside the log are rebuilt or refused; and whatever was damaged, no reader is given a record that is
not the one that was there. What a reader is given is checked as a client checks it, by each batch's CRC.
"""

from pathlib import Path

from onceflow.errors import OnceflowError
from onceflow.log.segment import LOG_SUFFIX
from onceflow.wire.batch import batches
from onceflow.wire.errors import CorruptBatch, ErrorCode, WireError
from tests.broker.simulation.ledger import Found, Ledger
from tests.broker.simulation.world import World

METADATA = "__cluster_metadata-0"
CHECKPOINTS = ("log-start-offset-checkpoint", "compaction-end-checkpoint")
"""Text without a checksum: another offset in it may hide records, never change them (docs/limits.md)."""


def rot(world: World) -> str:
    """Stop the broker in some way, flip a bit and start it; returns what became of it."""
    seed = world.seed
    how = seed.choice(("stop", "kill", "power"))
    if how == "stop":
        world.broker.stop()
    else:
        world.disk.cut_power_after(0)
        world.broker.drop()
    if how == "power":
        world.disk.crash(seed.randrange(2**32))
    else:
        world.disk.kill()
    path = pick(world)
    if path is None:
        return "nothing to damage"
    position = seed.randrange(world.disk.durable_bytes(path))
    first_lost = damaged_offset(path, position)
    world.disk.flip_bit(path, position, seed.randrange(8))
    what = f"{how}, bit flipped in {path.relative_to(world.root)} at {position}"
    try:
        world.start()
    except OnceflowError as error:
        # Where the topics' own log was cut, it is another file that does not fit any more.
        if path.name in str(error) or path.parent.name in str(error) or path.parent.name == METADATA:
            return "refused"
        raise AssertionError(f"{what}: {error}") from error
    try:
        check(world, path, first_lost)
        world.check_unexpected()
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return "served"


def pick(world: World) -> Path | None:
    """A file with durable bytes; every second time one that holds a topic's records."""
    files = sorted(
        path
        for path in world.root.rglob("*")
        if path.is_file() and path.name != ".lock" and world.disk.durable_bytes(path)
    )
    logs = [path for path in files if path.suffix == LOG_SUFFIX and not path.parent.name.startswith("__")]
    if logs and world.seed.random() < 0.5:
        return world.seed.choice(logs)
    return world.seed.choice(files) if files else None


def damaged_offset(path: Path, position: int) -> int:
    """The first offset of the batch at that position of a log's file."""
    if path.suffix == LOG_SUFFIX:
        for begin, header in batches(path.read_bytes()):
            if begin <= position < begin + header.size_bytes:
                return header.base_offset
    return 0


def check(world: World, path: Path, first_lost: int) -> None:
    for topic in world.topics.values():
        for ledger in topic.ledgers:
            if path.parent.name == METADATA or path.name in CHECKPOINTS:
                may_lose_from = 0
            elif path.suffix == LOG_SUFFIX and path.parent.name == str(ledger):
                # A record that compaction removed is lost if the later record of its key is.
                may_lose_from = first_lost if ledger.kind != "compacted" else 0
            else:
                may_lose_from = 1 << 60
            check_ledger(world, ledger, may_lose_from)


def check_ledger(world: World, ledger: Ledger, may_lose_from: int) -> None:
    """Every record that is served is the one that was there, and all below `may_lose_from` are served."""
    ledger.high_watermark = ledger.last_stable_offset = 0
    records = read_what_is_whole(world, ledger)
    ledger.high_watermark = max((item.offset + 1 for item in records), default=0)
    if may_lose_from:
        ledger.seen = {offset: value for offset, value in ledger.seen.items() if offset < may_lose_from}
        ledger.check_whole(records, world.clock.now_ms(), retention_ms=0)


def read_what_is_whole(world: World, ledger: Ledger) -> list[Found]:
    """Read like a client: up to an error, or to a batch with a wrong CRC."""
    offset = world.log_start(ledger)
    all_records: list[Found] = []
    for _ in range(1000):
        response = world.fetch_now(ledger, max(offset, 0), max_bytes=world.seed.choice((1, 300, 1000)))
        if response.error_code:
            allowed = (ErrorCode.unknown_topic_or_partition, ErrorCode.corrupt_message, ErrorCode.kafka_storage_error)
            assert response.error_code in allowed, ErrorCode(response.error_code)
            return all_records
        offset = max(offset, response.log_start_offset)
        try:
            records, behind = ledger.read(response, offset, committed=False)
        except (CorruptBatch, WireError):
            return all_records
        all_records += records
        if behind == offset:
            return all_records
        offset = behind
    raise AssertionError(f"{ledger}: it never ends")
