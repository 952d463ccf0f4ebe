"""Answers as one mapping for all versions: what a version lacks is left out, what no version has is a mistake."""

import pytest

from onceflow.broker.request import build
from onceflow.wire import apis
from onceflow.wire.frames import response_class

FIELDS = {"topics": (), "brokers": (), "cluster_id": "c", "controller_id": 1}


def test_a_field_of_another_version_is_left_out() -> None:
    built = [build(response_class(apis.METADATA, version), FIELDS) for version in (0, 1, 2)]
    assert [hasattr(each, "controller_id") for each in built] == [False, True, True]
    assert [hasattr(each, "cluster_id") for each in built] == [False, False, True]


@pytest.mark.parametrize("version", [0, 1, 9, 12])
def test_a_field_of_no_version_raises(version: int) -> None:
    with pytest.raises(TypeError, match="MetadataResponse has no field topicks in any served version"):
        build(response_class(apis.METADATA, version), {**FIELDS, "topicks": ()})
