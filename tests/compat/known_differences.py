"""What strangers' clients and tools see otherwise than on Apache Kafka 4.1.1, and why.

docs/compatibility.md has the table: python -m tests.compat.known_differences. docs/limits.md and docs/log-format.md
say to users what they have to know of it. tests/conformance/wanted.py names the answers that each of these explains.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """One thing: what Apache Kafka does, what is done here, and why it is not the same."""

    kafka: str
    here: str
    why: str


KNOWN_DIFFERENCES = {
    "group.protocol=consumer": Difference(
        "served, and share groups",
        "the client says UnsupportedVersionException",
        "the classic protocol is whole, and the default",
    ),
    "commit after a time-out": Difference(
        "InvalidTxnStateException; who then initialises in its own name goes on",
        "ProducerFencedException or InvalidProducerEpochException, as Kafka before 4.0",
        "EndTxn ends at 3, that of the first transaction version",
    ),
    "synonyms of retention.ms": Difference(
        "the default is not among them, nor for `segment.ms`, `flush.ms` and `segment.jitter.ms`",
        "it is",
        "a default that holds should be seen",
    ),
    "eligible leader replicas": Difference(
        "counted; `min.insync.replicas` is a setting of the new cluster",
        "`kafka-topics --describe` shows N/A; `min.insync.replicas` is a default",
        "there are no replicas",
    ),
    "configs of tiered storage, throttles and compression levels": Difference(
        "shown", "not shown, and refused", "there is nothing that they would configure"
    ),
    "APIs and versions": Difference(
        "also those of clusters, SASL, ACLs, quotas and topic ids",
        "[protocol.md](protocol.md): a plain 3.x broker's, with ListOffsets 0",
        "what is advertised is there, and no more; ListOffsets 0 alone tells where segments begin",
    ),
    "FeatureCommand": Difference("features", "an empty table", "no features are finalized"),
    "AclCommand": Difference("ACLs", "the client says that the node does not support them", "there are no ACLs"),
    "indexes of the open segment": Difference(
        "preallocated files", "written when the segment is closed or the broker stops", "they are in memory till then"
    ),
    "five batches in a snapshot": Difference(
        "a producer's last batch", "its last five", "all that a producer may repeat is kept"
    ),
    "records of groups": Difference(
        "an offset's has version 4, the first one with tagged fields, and all of them have sequence numbers",
        "version 3, and no sequence numbers",
        "the fields are the same: a commit by a topic's name tells no id; no idempotent producer writes them",
    ),
    "settings of the broker": Difference(
        "its own defaults and those of a cluster; many can be altered while it runs",
        "values and defaults that say what this broker does; all are read-only",
        "a description must be true; a restart changes them",
    ),
    "a producer's time": Difference(
        "DescribeProducers tells the last batch's own time",
        "the broker's clock when it came",
        "a producer expires by it, and replayed records may be years old",
    ),
    "stricter with batches": Difference(
        "what follows a batch, log-append time, a delete horizon and unused bits in it are ignored or stored",
        "refused",
        "no client sends it, and what is stored was meant",
    ),
    "records are not decoded": Difference(
        "each record is looked at, unpacked if need be: its time, and that there are as many as the header says",
        "header and CRC are held to be true, the latest time of a batch too; the number of records must fit the size",
        "records stay as they came, which is why it is fast",
    ),
    "what Kafka did not foresee": Difference(
        "UNKNOWN_SERVER_ERROR: unknown codecs, negative sizes in Fetch, unknown operations on configs, Metadata of a"
        " topic with neither name nor id",
        "INVALID_RECORD, one batch, INVALID_REQUEST",
        "it is the request that is wrong",
    ),
    "no answer": Difference(
        "no answer, the client waits until its time-out: null records, a protocol named twice in JoinGroup",
        "an answer",
        "a client must not wait for what does not come",
    ),
    "record errors": Difference(
        "each wrong record of a refused batch by its index (KIP-467)",
        "the first one's trouble in the batch's message",
        "a batch is refused whole in any case",
    ),
    "time of a repeated batch": Difference(
        "a repeated batch is acknowledged with its own time as if it were log-append time",
        "-1, as the first time",
        "the topic has create time",
    ),
    "the same twice, or nothing": Difference(
        "of two entries for a partition one counts; a topic without partitions is not answered",
        "both count, in order; every entry is answered",
        "nothing that was sent is dropped silently",
    ),
    "names of transactions": Difference(
        "a batch's transactional id is checked with the first batch for a partition, and not without a producer id",
        "with every batch",
        "who is not the transaction's producer writes nothing into it",
    ),
    "values as they were written": Difference(
        "CreateTopics shows `.5` as it came, DescribeConfigs 0.5", "both show 0.5", "it is one value"
    ),
    "time-outs of administrators": Difference(
        "REQUEST_TIMED_OUT, and it goes on", "the answer comes when it is done", "nobody has to ask again"
    ),
    "topics that are made by asking": Difference(
        "Metadata says UNKNOWN_TOPIC_OR_PARTITION until they are there", "the answer has them", "they are there at once"
    ),
    "limits on requests": Difference(
        "100 MiB, and any number of elements",
        "a request beyond the limits of [limits.md](limits.md) closes its connection",
        "one request must not hold the others up, nor take all memory",
    ),
    "stricter with frames": Difference(
        "text that is not UTF-8 is read as something else, lengths below -1 as null, 2³² - 1 tagged fields as none",
        "the connection is closed",
        "no client sends it, and what is not understood is not carried out",
    ),
    "followers": Difference(
        "a Fetch's last fetched epoch is compared", "skipped", "only followers send it, and there are none"
    ),
    "fetch sessions": Difference(
        "a Fetch may begin a session (KIP-227)", "the session id is always 0", "each request names its partitions"
    ),
}

BEGIN = "<!-- Written by `python -m tests.compat.known_differences`; a test compares. -->\n"


def table() -> str:
    """The part of docs/compatibility.md that comes from here."""
    rows = [f"| {name} | {value.kafka} | {value.here} | {value.why} |" for name, value in KNOWN_DIFFERENCES.items()]
    head = ["| what | on Apache Kafka 4.1.1 | here | why |", "|---|---|---|---|"]
    return BEGIN + "\n" + "\n".join(head + rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
