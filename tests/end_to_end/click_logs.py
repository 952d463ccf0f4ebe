"""Click logs with known numbers: the real ones of ../shared/data, or seeded twins of them where that is absent."""

import csv
import gzip
import io
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parents[2] / "../shared/data"
SESSION_GAP_MS = 30 * 60_000
HOUR_MS = 3_600_000
TWIN_ROWS = {"globo": 20_000, "taobao": 1_000}


class Event(NamedTuple):
    """One row of a log."""

    time_ms: int
    uid: str
    os: str
    text: str
    """Its line in the file."""


class ClickLog(NamedTuple):
    """A log file in memory."""

    events: list[Event]
    header: str
    suffix: str
    options: tuple[str, ...]
    """Options of `onceflow replay`."""
    is_real: bool

    def write(self, path: Path, events: Sequence[Event]) -> Path:
        """Write some of the events as a file of the same format."""
        whole = path.with_suffix(self.suffix)
        whole.write_text(self.header + "".join(event.text for event in events))
        return whole


def _options(uid: str, time: str, system: str, time_format: str) -> tuple[str, ...]:
    fields = {"uid": uid, "event_time": time, "os_type": system}
    named = itertools.chain.from_iterable(("--field", f"{name}={column}") for name, column in fields.items())
    return (*named, "--const", "click_count=1", "--time-format", time_format)


def globo() -> ClickLog:
    """Return a news portal's clicks: grouped by session, so most are late in the order of the file."""
    path = DATA / "globo_clicks_h000-047.csv.gz"
    header, *lines = _lines(path) if path.exists() else list(_globo_twin())
    columns = header.strip().split(",")
    uid, time, system = (columns.index(name) for name in ("user_id", "click_timestamp", "click_os"))
    rows = csv.reader(io.StringIO("".join(lines)))
    events = [Event(int(row[time]), row[uid], row[system], line) for row, line in zip(rows, lines, strict=True)]
    return ClickLog(events, header, ".csv", _options("user_id", "click_timestamp", "click_os", "ms"), path.exists())


def taobao() -> ClickLog:
    """Return a shop's events, with ISO times."""
    path = DATA / "taobao_user_behavior_1000.jsonl.gz"
    events = []
    for line in _lines(path) if path.exists() else _taobao_twin():
        row = json.loads(line)
        moment = datetime.fromisoformat(row["ts"])
        events.append(Event(round(moment.timestamp() * 1000), row["user_id"], row["behavior"], line))
    return ClickLog(events, "", ".jsonl", _options("user_id", "ts", "behavior", "iso"), path.exists())


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", newline="") as file:
        return file.readlines()


def _globo_twin() -> Iterator[str]:
    chance = random.Random(1)
    yield "user_id,click_timestamp,click_os\n"
    left = TWIN_ROWS["globo"]
    while left:
        user, system = int(chance.expovariate(1 / 2_000)), chance.choice((2, 17, 20))
        time_ms = 1_506_826_800_000 + chance.randrange(48 * HOUR_MS)
        for _ in range(min(left, 1 + chance.randrange(5))):
            yield f"{user},{time_ms},{system}\n"
            time_ms += int(chance.expovariate(1 / 600_000))
            left -= 1


def _taobao_twin() -> Iterator[str]:
    chance = random.Random(2)
    for number in range(TWIN_ROWS["taobao"]):
        moment = datetime.fromtimestamp(1_511_658_000 + number * 85 // TWIN_ROWS["taobao"], UTC)
        row = {"user_id": str(chance.randrange(5_000)), "behavior": chance.choice(("pv", "cart", "buy"))}
        yield json.dumps(row | {"ts": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}) + "\n"


def numbers_of(events: Sequence[Event]) -> dict[str, Any]:
    """Return the right numbers of these events, counted plainly, by the names of oracle.json."""
    by_user = Counter(event.uid for event in events)
    hours: dict[int, list[str]] = defaultdict(list)
    for event in events:
        hours[event.time_ms - event.time_ms % HOUR_MS].append(event.uid)
    times: dict[str, list[int]] = defaultdict(list)
    for event in sorted(events):
        times[event.uid].append(event.time_ms)
    gaps = (later - time for one in times.values() for time, later in itertools.pairwise(one))
    top = sorted(by_user.items(), key=lambda entry: (-entry[1], entry[0]))[:10]
    return {
        "rows": len(events),
        "users": len(by_user),
        "top10_users": [list(entry) for entry in top],
        "per_os": dict(Counter(event.os for event in events)),
        "hourly_windows": [[start, len(uids), len(set(uids))] for start, uids in sorted(hours.items())],
        "sessions_gap_30min": len(by_user) + sum(gap > SESSION_GAP_MS for gap in gaps),
    }


def oracle(name: str) -> dict[str, Any]:
    """Return the numbers of a real log as another tool has counted them."""
    oracles = json.loads((DATA / "oracle.json").read_text())
    expected = oracles[next(key for key in oracles if key.startswith(name))]
    assert isinstance(expected, dict)
    return expected
