"""Names of error codes, compared with those that kafka-python copied from Kafka."""

import pytest

from onceflow.wire.errors import ErrorCode, error_name

RENAMED = {-1: "UNKNOWN", 0: "NO_ERROR", 6: "NOT_LEADER_FOR_PARTITION", 10: "MESSAGE_SIZE_TOO_LARGE"}
RENAMED |= {17: "INVALID_TOPIC", 39: "INVALID_REPLICATION_ASSIGNMENT"}
"""Older names of Kafka, and kafka-python's own."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_error_names_are_kafkas() -> None:
    from kafka import errors as theirs

    classes = [kind for kind in vars(theirs).values() if isinstance(kind, type)]
    names = {kind.errno: kind.message for kind in classes if issubclass(kind, theirs.BrokerResponseError)}  # type: ignore[attr-defined]
    del names[None]
    compared = {code.value for code in ErrorCode} & names.keys()
    assert len(compared) > 125
    assert {code: names[code] for code in compared if names[code] != error_name(code)} == RENAMED


def test_the_name_of_an_unknown_code() -> None:
    assert (error_name(3), error_name(9999)) == ("UNKNOWN_TOPIC_OR_PARTITION", "error 9999")
