"""Offset arithmetic, mostly as tables of cases."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onceflow.spark import offsets
from onceflow.spark.offsets import MalformedOffsets, OffsetRange, Offsets

ID_A, ID_B = "5e1b2d3c-0000-0000-0000-00000000000a", "5e1b2d3c-0000-0000-0000-00000000000b"


def test_checkpoint_text_is_stable() -> None:
    value = Offsets({"orders": {10: 5, 2: 7}, "clicks": {0: 23}}, {"orders": ID_B, "clicks": ID_A})
    assert json.dumps(value.as_json()) == (
        f'{{"clicks": {{"0": 23}}, "orders": {{"2": 7, "10": 5}}, "@ids": {{"clicks": "{ID_A}", "orders": "{ID_B}"}}}}'
    )


def test_shape_without_topic_ids() -> None:
    assert Offsets({"clicks": {0: 23, 1: 7}}).as_json() == {"clicks": {"0": 23, "1": 7}}


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z0-9._-]{1,12}", fullmatch=True),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    )
)
def test_parse_reads_written_text(by_topic: dict[str, dict[int, int]]) -> None:
    value = Offsets(by_topic, dict.fromkeys(by_topic, ID_A))
    text = json.dumps(value.as_json())
    assert offsets.parse(text) == value
    assert json.dumps(offsets.parse(text).as_json()) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latest?", "are not JSON"),
        ("[1]", "are not a JSON object"),
        ('{"clicks": 5}', "offsets of topic clicks are 5"),
        ('{"clicks": {"a": 5}}', "partition 'a' of topic clicks"),
        ('{"clicks": {"-1": 5}}', "partition '-1' of topic clicks"),
        ('{"clicks": {"0": 5.0}}', "offset 5.0 of clicks-0"),
        ('{"clicks": {"0": true}}', "offset True of clicks-0"),
        ('{"clicks": {"0": 5}, "@ids": 3}', "@ids 3"),
    ],
)
def test_text_that_is_not_offsets_is_refused(text: str, message: str) -> None:
    with pytest.raises(MalformedOffsets, match=message):
        offsets.parse(text)


RANGES = [
    ("batch 0 only says where it starts", None, {"t": {0: 4}}, [("t", 0, 4, 4)]),
    (
        "partitions in order",
        {"t": {0: 1, 10: 1, 2: 1}},
        {"t": {10: 3, 2: 2, 0: 1}},
        [("t", 0, 1, 1), ("t", 2, 1, 2), ("t", 10, 1, 3)],
    ),
    ("a new partition has no rows", {"t": {0: 1}}, {"t": {0: 2, 1: 50}}, [("t", 0, 1, 2), ("t", 1, 50, 50)]),
    ("a new topic has no rows", {"t": {0: 1}}, {"t": {0: 1}, "u": {0: 9}}, [("t", 0, 1, 1), ("u", 0, 9, 9)]),
    ("a start behind its end has no rows", {"t": {0: 215}}, {"t": {0: 110}}, [("t", 0, 110, 110)]),
    ("a topic that left is not read", {"t": {0: 1}, "u": {0: 1}}, {"t": {0: 2}}, [("t", 0, 1, 2)]),
]


@pytest.mark.parametrize(("start", "end", "expected"), [row[1:] for row in RANGES], ids=[r[0] for r in RANGES])
def test_ranges(
    start: dict[str, dict[int, int]] | None, end: dict[str, dict[int, int]], expected: list[tuple[str, int, int, int]]
) -> None:
    begin = None if start is None else Offsets(start)
    assert offsets.ranges(begin, Offsets(end)) == [OffsetRange(*row) for row in expected]


def test_recreated_topic_enters_without_rows() -> None:
    start, end = Offsets({"t": {0: 5}}, {"t": ID_A}), Offsets({"t": {0: 9}}, {"t": ID_B})
    assert offsets.ranges(start, end) == [OffsetRange("t", 0, 9, 9)]


def test_following_starts_new_partitions_at_begin() -> None:
    start, ends = Offsets({"t": {0: 5}}, {"t": ID_A}), Offsets({"t": {0: 9, 1: 30}, "u": {0: 8}}, {"t": ID_A})
    assert offsets.entering(start, ends) == {"t": [1], "u": [0]}
    batch_end = offsets.following(start, ends, {"t": {1: 20}, "u": {0: 0}})
    assert batch_end == Offsets({"t": {0: 9, 1: 20}, "u": {0: 0}}, {"t": ID_A})


def test_recreated_topic_enters_in_all_partitions() -> None:
    start, ends = Offsets({"t": {0: 5, 1: 5, 2: 5}}, {"t": ID_A}), Offsets({"t": {0: 9, 1: 9}}, {"t": ID_B})
    assert offsets.entering(start, ends) == {"t": [0, 1]}
    assert offsets.following(start, ends, {"t": {0: 0, 1: 2}}) == Offsets({"t": {0: 0, 1: 2}}, {"t": ID_B})


def test_recreated_topic_with_fewer_partitions() -> None:
    start, ends = Offsets({"t": {0: 5, 1: 5}}, {"t": ID_A}), Offsets({"t": {0: 9}}, {"t": ID_B})
    assert offsets.following(start, ends, {"t": {0: 0}}) == Offsets({"t": {0: 0}}, {"t": ID_B})


def test_unknown_topic_id_matches() -> None:
    start, end = Offsets({"t": {0: 5}}), Offsets({"t": {0: 9}}, {"t": ID_A})
    assert offsets.ranges(start, end) == [OffsetRange("t", 0, 5, 9)]
    assert offsets.entering(start, end) == {}


def test_missing_topic_keeps_its_offsets() -> None:
    start, ends = Offsets({"t": {0: 5}, "u": {0: 1}}, {"t": ID_A}), Offsets({"u": {0: 2}})
    assert offsets.following(start, ends, {}) == Offsets({"t": {0: 5}, "u": {0: 2}}, {"t": ID_A})


def test_start_does_not_pass_fixed_end() -> None:
    ends = Offsets({"t": {0: 9}})
    assert offsets.following(Offsets({}), ends, {"t": {0: 12}}) == ends


LOSSES = [
    ("nothing", {"t": {0: 5}}, {"t": ID_A}, {"t": {0: 5}}, {"t": ID_A}, []),
    ("ids unknown", {"t": {0: 5}}, {}, {"t": {0: 5}}, {"t": ID_A}, []),
    ("topic missing", {"t": {0: 5}}, {}, {}, {}, ["topic t"]),
    ("recreated", {"t": {0: 5}}, {"t": ID_A}, {"t": {0: 9}}, {"t": ID_B}, ["topic t"]),
    ("end moved back", {"t": {0: 5}}, {}, {"t": {0: 4}}, {}, ["t-0 [4, 5)"]),
    ("partition missing", {"t": {0: 5, 1: 5}}, {}, {"t": {0: 5}}, {}, ["t-1"]),
]


@pytest.mark.parametrize(
    ("start", "start_ids", "ends", "end_ids", "lost"), [row[1:] for row in LOSSES], ids=[row[0] for row in LOSSES]
)
def test_losses(
    start: dict[str, dict[int, int]],
    start_ids: dict[str, str],
    ends: dict[str, dict[int, int]],
    end_ids: dict[str, str],
    lost: list[str],
) -> None:
    assert [loss.place for loss in offsets.losses(Offsets(start, start_ids), Offsets(ends, end_ids))] == lost


def test_limit_is_proportional() -> None:
    start, end = Offsets({"t": {0: 0, 1: 100, 2: 7}}), Offsets({"t": {0: 300, 1: 200, 2: 7}})
    assert offsets.limit(start, end, 100).by_topic == {"t": {0: 75, 1: 125, 2: 7}}
    assert offsets.limit(start, end, 400) == end


def test_limited_small_partition_advances() -> None:
    start, end = Offsets({"t": {0: 0, 1: 0}}), Offsets({"t": {0: 1_000_000, 1: 1}})
    assert offsets.limit(start, end, 10).by_topic == {"t": {0: 9, 1: 1}}


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 9), st.integers(0, 200), min_size=1), st.integers(1, 500))
def test_limited_batches_read_everything(backlog: dict[int, int], most: int) -> None:
    position, end = Offsets({"t": dict.fromkeys(backlog, 0)}), Offsets({"t": backlog})
    for _ in range(max(backlog.values())):
        following = offsets.limit(position, end, most)
        read = sum(part.size for part in offsets.ranges(position, following))
        assert read < most + len(backlog)
        position = following
    assert position == end


def test_small_ranges_share_a_task() -> None:
    parts = [OffsetRange("t", number, 0, size) for number, size in enumerate([500, 20, 0, 10])]
    assert offsets.share_out(parts, 100) == [[parts[0]], [parts[1]], [parts[3]]]
    assert offsets.share_out(parts, 1000) == [[parts[0], parts[1], parts[3]]]
    assert offsets.share_out([parts[2]], 1000) == []
    assert offsets.share_out([], 1000) == []
    assert offsets.share_out(parts, 100, tasks_max=2) == [[parts[0]], [parts[1], parts[3]]]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 1000), max_size=12),
    st.integers(1, 500),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 300),
)
def test_each_offset_has_exactly_one_task(
    sizes: list[int], least: int, tasks_min: int | None, tasks_max: int | None, most: int | None
) -> None:
    assume(tasks_min is None or tasks_max is None)  # The source refuses both.
    parts = [OffsetRange("t", number, 5, 5 + size) for number, size in enumerate(sizes)]
    tasks = offsets.share_out(parts, least, tasks_min=tasks_min, tasks_max=tasks_max, offsets_per_task_max=most)
    read = sorted((part.partition, offset) for task in tasks for part in task for offset in range(part.begin, part.end))
    assert read == [(part.partition, offset) for part in parts for offset in range(part.begin, part.end)]
    in_order = [(part.partition, offset) for task in tasks for part in task for offset in range(part.begin, part.end)]
    for partition in range(len(sizes)):
        of_one = [offset for number, offset in in_order if number == partition]
        assert of_one == sorted(of_one), "taken task by task, a partition's records are in order"
    assert all(part.size for task in tasks for part in task)
    assert all(tasks)
    assert len(tasks) >= min(tasks_min or 0, sum(sizes))
    assert most is None or all(sum(part.size for part in task) <= most for task in tasks)
    assert tasks_max is None or most is not None or len(tasks) <= tasks_max
    if tasks_min is None and most is None:
        assert sorted(part for task in tasks for part in task) == [part for part in parts if part.size]


def test_ranges_are_split_in_proportion() -> None:
    parts = [OffsetRange("t", 0, 0, 300), OffsetRange("t", 1, 0, 100)]
    tasks = offsets.share_out(parts, 10_000, tasks_min=4)
    assert sorted(part for task in tasks for part in task) == [
        OffsetRange("t", 0, 0, 100),
        OffsetRange("t", 0, 100, 200),
        OffsetRange("t", 0, 200, 300),
        OffsetRange("t", 1, 0, 100),
    ]
