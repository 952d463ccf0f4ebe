"""Events as columns."""

from onceflow.clicks.event_table import event_table
from onceflow.clicks.single_event import ArchivedFields

TIMESTAMP_MS = 1_430_204_612_405


def test_columns_of_odd_events() -> None:
    values = [
        b'{"uid":"ann","event_time":"1430204612000","os_type":"iOS","click_count":"6.0"}',
        b'{"uid":7,"click_count":0,"page":"/a","n":1.50,"deep":{"a":[1, 2]}}',
        b'{"uid":"eve","event_time":"2040-01-01T00:00:00Z","os_type":[],"click_count":1,"page":1,"page":"2"}',
        b"nonsense",
        None,
        b'{"uid":"","click_count":1}',
    ]
    records = [(value, 3, 10 + number, TIMESTAMP_MS) for number, value in enumerate(values)]
    rows = event_table(ArchivedFields(), records).to_pylist()
    assert [(row["uid"], row["clicks"], row["os"], row["offset"]) for row in rows] == [
        ("ann", 6, "iOS", 10),
        ("7", 0, "unknown", 11),
        ("eve", 1, "unknown", 12),
    ]
    assert [(row["no_time"], row["future"]) for row in rows] == [(False, False), (True, False), (False, True)]
    assert [int(row["event_time"].timestamp() * 1000) for row in rows] == [1430204612000, TIMESTAMP_MS, TIMESTAMP_MS]
    assert [row["extra"] for row in rows] == [None, '{"page":"/a","n":1.50,"deep":{"a":[1, 2]}}', '{"page":"2"}']
    assert {row["partition"] for row in rows} == {3}


def test_other_fields() -> None:
    fields = ArchivedFields("page", None, "at")
    [row] = event_table(fields, [(b'{"page":"/","at":5,"uid":"ann","click_count":2}', 0, 0, TIMESTAMP_MS)]).to_pylist()
    assert (row["uid"], row["clicks"], row["extra"]) == ("/", 1, '{"uid":"ann","click_count":2}')
    assert row["event_time"].timestamp() == 0.005
