"""The Java client's transactions: commit, abort, offsets, fencing, timeouts, and its admin client's view."""

from tests.compat.java_programs import JavaPrograms
from tests.compat.known_differences import KNOWN_DIFFERENCES


def numbered(prefix: str, count: int = 4) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_commit_and_abort(java: JavaPrograms, topic: str) -> None:
    """Two committed, one aborted, one empty; the last is open at first, so its end is the stable one.

    Partition 0 holds two records of each transaction, followed by a marker.
    """
    opened, closed = java.run("Transactions", topic, "outcomes")
    a, b, c = numbered("a"), numbered("b"), numbered("c")
    assert opened == {"when": "open", "committed": a, "all": a + b + c, "stableEnd": 6, "end": 8}
    assert closed == {"when": "closed", "committed": a + c, "all": a + b + c, "stableEnd": 9, "end": 9}


def test_offsets_move_with_the_transaction(java: JavaPrograms, topic: str) -> None:
    """Consume, transform, produce: nothing of the aborted attempt, everything of the committed one."""
    aborted, committed, output = java.run("Transactions", topic, "offsets")
    assert aborted == {"commit": False, "offset": None, "metadata": None}
    assert committed == {"commit": True, "offset": 5, "metadata": "half"}
    assert output == {"output": [f"out of in{number}" for number in range(10)]}


def test_a_second_producer_fences_the_first(java: JavaPrograms, topic: str) -> None:
    """Its open transaction is aborted before the second may begin, and none of it is ever committed."""
    fenced, second, late, third = java.run("Transactions", topic, "fenced")
    assert fenced["afterInit"] == []
    assert fenced["commit"] in {"ProducerFencedException", "InvalidProducerEpochException"}
    assert fenced["begin"] in {"ProducerFencedException", "KafkaException"}
    assert second == {"committed": numbered("next")}
    assert late["send"] in {"ProducerFencedException", "InvalidProducerEpochException"}
    assert third == {"committed": numbered("next")}


def test_offsets_of_an_earlier_generation(java: JavaPrograms, topic: str) -> None:
    """They are refused with CommitFailed; after the abort the same producer continues with the right ones."""
    refused, right = java.run("Transactions", topic, "stale-group")
    assert refused == {"error": "CommitFailedException"}
    assert right == {"committed": numbered("right"), "offset": 1}


def test_a_transaction_that_times_out(java: JavaPrograms, topic: str) -> None:
    """The broker aborts it, and its producer gets an error."""
    assert "commit after a timeout" in KNOWN_DIFFERENCES
    (response,) = java.run("Transactions", topic, "timed-out")
    assert response["committed"] == []
    assert response["stable"]
    assert response["commit"] in {"ProducerFencedException", "InvalidProducerEpochException"}


def test_the_admin_client_describes_and_aborts(java: JavaPrograms, topic: str) -> None:
    """Describe, list, the partition's producers, an abort by marker, a fence."""
    begun, opened, producer, ended, fence, commit, unknown = java.run("Transactions", topic, "admin")
    assert begun == {
        "state": "Empty",
        "timeout": 60_000,
        "epoch": begun["epoch"],
        "begun": False,
        "partitions": [],
        "listed": [f"{topic} Empty"],
    }
    assert opened["state"] == "Ongoing"
    assert opened["begun"]
    assert opened["listed"] == [f"{topic} Ongoing"]
    assert opened["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert producer == {"sequence": 1, "epoch": producer["epoch"], "start": 0, "recent": True}
    assert ended == {"start": -1, "stable": 3}
    assert fence == {"fence": "none"}
    assert commit["committed"] == []
    assert commit["commit"] in {"ProducerFencedException", "InvalidProducerEpochException"}
    assert unknown == {"unknown": "TransactionalIdNotFoundException"}


def test_many_transactions_with_a_reader_behind_them(java: JavaPrograms, topic: str) -> None:
    """Every committed record once, each producer's in order within a partition, nothing of an aborted one."""
    (response,) = java.run("Transactions", topic, "many")
    wanted = [
        f"{name} {number} {record}"
        for number in range(100)
        for name in ("one", "two")
        for record in range(5)
        if name == "two" or number % 3
    ]
    assert sorted(response["values"]) == sorted(wanted)
    for name in ("one", "two"):
        for partition in range(2):
            mine = [
                (int(number), int(record))
                for kind, number, record in (value.split() for value in response["values"])
                if kind == name and int(record) % 2 == partition
            ]
            assert mine == sorted(mine)
