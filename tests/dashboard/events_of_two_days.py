"""Events of two days in a topic, counted over time and archived without Spark, as the dashboard's tests need them."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.dashboard.sources import Addresses
from onceflow.spark.redis import rows as redis_rows
from tests.clicks.archived import filled
from tests.clicks.counted import write
from tests.clicks.without_spark import Stream, rows_again

FIRST_MS = 1_430_092_800_000
"""2015-04-27T00:00:00Z."""
HOUR_MS = 3_600_000
HOURS = 44
"""Length of the events: the second day ends at 20:00."""
SETTINGS = MeasureSettings(dimensions={"os": "os_type", "page": "url", "country": "geo"}, over_time=True, sessions=True)
BAD = (b"nonsense", b'{"uid":"","click_count":1}')
NAMES = {"os": "os_type", "page": "url", "country": "geo"}

Event = dict[str, Any]


def two_days(count: int) -> list[Event]:
    """Return seeded events, some with values that a page or a spreadsheet could take for markup or a formula."""
    chance = random.Random(7)
    made = [
        {
            "uid": f"user-{int(chance.paretovariate(1)) % 40}",
            "click_count": chance.randrange(5),
            "os_type": chance.choice(["Linux", "iOS", "Android"]),
            "url": chance.choice(["/", "/cart", "/a=b", "<script>alert(1)</script>", "=1+1"]),
            "geo": chance.choice(["DE", "FR"]),
            "event_time": FIRST_MS + chance.randrange(HOURS * HOUR_MS),
            "price": chance.randrange(100),
        }
        for _ in range(count)
    ]
    made[0] |= {"uid": "<img src=x onerror=alert(1)>", "event_time": FIRST_MS + HOURS * HOUR_MS - 1}
    return made


@dataclass(frozen=True)
class Counted:
    """A counted and archived topic: all its events, and how many of them are counted and archived."""

    addresses: Addresses
    archive: Path
    events: Sequence[Event]
    counted: int


def count_and_archive(
    bootstrap: str, redis_url: str, name: str, directory: Path, *, events: int = 400, counted: int = 400
) -> Counted:
    """Write the events and two bad ones to a topic, count the first `counted` and archive three quarters of those."""
    made = two_days(events)
    values: list[bytes] = [json.dumps(event).encode() for event in made]
    first, rest = [*values[:counted], *BAD], values[counted:]
    write(bootstrap, name, {0: first}, partitions=1)
    pipeline = ClickPipeline(
        bootstrap=bootstrap,
        topic=name,
        checkpoint=str(directory / "checkpoint"),
        redis_url=redis_url,
        hash_key=f"clicks::{name}",
        measures=SETTINGS,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ClickPipeline, "rows_again", rows_again)
        patched.setattr(redis_rows, "is_worth_a_try", lambda *_: True)
        Stream("8d6a1f0e-2f7e-4f0e-9a39-2b4f7f2f3a11", pipeline).count()
    if rest:
        write(bootstrap, name, {0: rest}, partitions=1)
    archived = values[: counted * 3 // 4]
    filled(directory / "archive", [archived], topic=name)
    addresses = Addresses(redis_url, pipeline.hash_key, bootstrap, name)
    return Counted(addresses, directory / "archive", made, counted)
