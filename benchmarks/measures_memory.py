"""How much memory of Redis does each measure take, for a number of users, days and values of a dimension?

The sink's own scripts write the rows, without Spark. On each day each user has one session of three events, in one
minute; the users are spread over the day, and each has one value of the dimension `os`. Retention is that of
`onceflow run`, so only 48 hours have minutes. The size of a key is Redis's MEMORY USAGE of all its members.

python -m benchmarks.measures_memory [USERS [DAYS [VALUES]]]
"""

import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import redis

from onceflow import services
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.windows import DAY, HOUR, MINUTE, WIDTHS
from onceflow.spark.redis.buckets import Row
from onceflow.spark.redis.scripts import Keys
from tests.spark.redis_steps import Driver, batch_of

USERS, DAYS, VALUES = 100_000, 1, 10
FIRST_DAY_START_MS = 1_700_006_400_000
ROWS_PER_SCRIPT = 5_000
EVENTS = 3


def user_rows(uid: bytes, system: bytes, time_ms: int) -> Iterator[Row]:
    """Yield the rows of a user's day, without those that many users share."""
    yield "count", uid, EVENTS, None
    for width in WIDTHS:
        start = b"%d:" % width.start_of(time_ms)
        yield f"{width.name}-users", start, 0, uid
        yield f"{width.name}-users", b"%sos=%s" % (start, system), 0, uid
        if width in (HOUR, DAY):
            yield f"{width.name}-top", start + uid, EVENTS, None
    yield "sessions", uid, 0, b"%d,%d,%d,%d" % (time_ms, time_ms + 20_000, EVENTS, EVENTS)


def shared_rows(system: bytes, time_ms: int) -> Iterator[tuple[str, bytes]]:
    """Yield target and field of the sums to which a user's day adds."""
    yield "os", system
    for width in WIDTHS:
        start = b"%d:" % width.start_of(time_ms)
        for name in (b"events", b"clicks"):
            yield width.name, start + name
            yield f"{width.name}:os", b"%s%s:%s" % (start, name, system)


def rows_of(users: int, day: int, values: int) -> Iterator[Row]:
    """Yield all rows of a day, in the order of time."""
    sums = Counter[tuple[str, bytes]]()
    for user in range(users):
        time_ms = FIRST_DAY_START_MS + day * DAY.ms + user * (DAY.ms - MINUTE.ms) // users
        uid, system = b"%032x" % user, b"system-%d" % (user % values)
        yield from user_rows(uid, system, time_ms)
        for place in shared_rows(system, time_ms):
            sums[place] += EVENTS
    for (target, field), amount in sums.items():
        yield target, field, amount, None


def fill(driver: Driver, users: int, days: int, values: int) -> None:
    """Write each day, in micro-batches of one script."""
    driver.acquire(batch_of(0))
    rows = itertools.chain.from_iterable(rows_of(users, day, values) for day in range(days))
    number = 0
    while some := list(itertools.islice(rows, ROWS_PER_SCRIPT)):
        driver.whole(batch_of(number), some)
        number += 1


def sizes(client: redis.Redis, keys: Keys) -> dict[str, tuple[int, int]]:
    """Return number and bytes of the keys of each measure; an index belongs to its measure."""
    # `minute:os` and `minute` are indexes of their own.
    indexes = sorted((index.key for index in keys.indexes), key=len, reverse=True)
    measures: dict[str, tuple[int, int]] = {}
    for raw in client.scan_iter(count=1_000):
        key = raw.decode()
        index = next((index for index in indexes if f"{key}:".startswith(f"{index}:")), key)
        name = index.rpartition("}:")[2]
        count, size = measures.get(name, (0, 0))
        measures[name] = count + 1, size + int(client.memory_usage(raw, samples=0) or 0)
    return measures


def measure(directory: Path, users: int, days: int, values: int) -> Iterator[tuple[str, int, int]]:
    """Yield each measure with the number of its keys and their bytes."""
    port = services.free_port()
    arguments = services.redis_arguments(services.find_redis_server(), directory, port, appendfsync="no")
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        while not services.redis_is_ready(port):
            continue
        url = f"redis://127.0.0.1:{port}/1"
        settings = MeasureSettings(over_time=True, sessions=True)
        job = ClickPipeline("", "", str(directory), redis_url=url, hash_key="clicks", measures=settings)
        driver = Driver(url, job.sink(None).target.keys)
        fill(driver, users, days, values)
        for name, (count, size) in sorted(sizes(driver.client, driver.keys).items()):
            yield name, count, size
    finally:
        server.terminate()
        server.wait()


def main(users: int = USERS, days: int = DAYS, values: int = VALUES) -> None:
    """Print the table."""
    print(f"{users:,} users, {days} days, {values} values\n\n| measure | keys | MB | bytes per user and day |")
    print("|---|---:|---:|---:|")
    total = 0
    with tempfile.TemporaryDirectory() as directory:
        for name, count, size in measure(Path(directory), users, days, values):
            total += size
            print(f"| `{name}` | {count:,} | {size / 1e6:.2f} | {size / users / days:.1f} |", flush=True)
    print(f"| total | | {total / 1e6:.2f} | {total / users / days:.1f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
