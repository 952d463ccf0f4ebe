"""Records of `__consumer_offsets` in Kafka's bytes."""

import pytest

from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.group import subscribed_topics
from onceflow.broker.groups.records import GroupMetadata, GroupRecord, GroupRemoval, MemberMetadata, OffsetCommit
from onceflow.broker.topics.records import UnknownRecord

MEMBER = MemberMetadata("m", None, "c", "/h", 1, 2, b"\x00s", b"")


@pytest.mark.parametrize(
    "record",
    [
        OffsetCommit("gröup", "topic", 7, 2**40, 3, "note ✓", 1_700_000_000_000),
        OffsetCommit("g", "t", 0, 5, -1, "", 1_700_000_000_000, 1_700_000_099_000),
        OffsetCommit("g", "t", 0, None),
        GroupMetadata("g", "consumer", 4, None, None, 5, ()),
        GroupMetadata("g", "consumer", 4, "range", "m", 5, (MEMBER,)),
        GroupMetadata("g", "consumer", 4, "range", "m", 5, (MemberMetadata("m", "i", "c", "/h", 1, 2, b"", b"a"),)),
        GroupRemoval("g"),
    ],
)
def test_records_come_back_as_they_were(record: GroupRecord) -> None:
    assert group_records.decode(*group_records.encode(record)) == record


def test_record_of_later_release_is_refused() -> None:
    key, value = group_records.encode(OffsetCommit("g", "t", 0, 5))
    assert value is not None
    with pytest.raises(UnknownRecord, match="key version 9"):
        group_records.decode(b"\x00\x09" + key[2:], value)
    with pytest.raises(UnknownRecord, match="value version 4"):
        group_records.decode(key, b"\x00\x04" + value[2:])


def test_values_of_older_kafkas_are_read() -> None:
    key, _value = group_records.encode(OffsetCommit("g", "t", 0, None))
    offset, committed_at = (5).to_bytes(8, "big"), (77).to_bytes(8, "big")
    assert group_records.decode(key, b"\0\0" + offset + b"\0\1m" + committed_at) == OffsetCommit(
        "g", "t", 0, 5, -1, "m", 77
    )
    group_key, value = group_records.encode(GroupMetadata("g", "consumer", 4, "range", "m", 5, ()))
    assert value is not None
    without_timestamp = b"\0\1" + value[2:-12] + value[-4:]
    assert group_records.decode(group_key, without_timestamp) == GroupMetadata("g", "consumer", 4, "range", "m", -1, ())


def test_subscribed_topics_are_decoded() -> None:
    subscription = b"\0\3" + (2).to_bytes(4, "big") + b"\0\1a\0\2bc" + b"user data and more"
    assert subscribed_topics([subscription, b"\0\0\0\0\0\0"]) == frozenset({"a", "bc"})
    for broken in (b"", b"\0\0\x7f\xff\xff\xff", b"\0\0\x7f\xff\xff\xff\xff\xfe", b"\0\0\0\0\0\1\0\1\xff"):
        assert subscribed_topics([subscription, broken]) is None
