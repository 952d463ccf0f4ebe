"""Differences from Apache Kafka 4.1.1 that clients and tools of other projects see, with reasons.

docs/compatibility.md has the table: python -m tests.compat.known_differences. docs/limits.md and docs/log-format.md
have the consequences for users. tests/conformance/expected_differences.py lists the responses that each one explains.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """One difference: Kafka's behaviour, the behaviour here, and the reason."""

    kafka: str
    here: str
    why: str


KNOWN_DIFFERENCES = {
    "group.protocol=consumer": Difference(
        "supported, and share groups",
        "the client raises UnsupportedVersionException",
        "the classic protocol is complete, and the default",
    ),
    "first sequence of a producer": Difference(
        "any, if the partition does not know the producer",
        "0; any other is refused with NOT_ENOUGH_REPLICAS, and accepted when it comes again after 250 ms",
        "librdkafka may send its second batch first and take both as acknowledged",
    ),
    "commit after a timeout": Difference(
        "InvalidTxnStateException; a producer that then initialises its own transactional id continues",
        "ProducerFencedException or InvalidProducerEpochException, as in Kafka before 4.0",
        "EndTxn ends at version 3, that of the first transaction version",
    ),
    "synonyms of retention.ms": Difference(
        "do not include the default, nor for `segment.ms`, `flush.ms` and `segment.jitter.ms`",
        "include it",
        "an effective default should be visible",
    ),
    "eligible leader replicas": Difference(
        "counted; `min.insync.replicas` is a setting of the new cluster",
        "`kafka-topics --describe` shows N/A; `min.insync.replicas` is a default",
        "there are no replicas",
    ),
    "configs of tiered storage, throttles and compression levels": Difference(
        "shown", "not shown, and refused", "they would have no effect"
    ),
    "APIs and versions": Difference(
        "also those of clusters, SASL and topic ids",
        "[protocol.md](protocol.md): a plain 3.x broker's, with ListOffsets 0",
        "only supported APIs are advertised; only ListOffsets 0 returns where segments start",
    ),
    "FeatureCommand": Difference("features", "an empty table", "no features are finalized"),
    "indexes of the open segment": Difference(
        "preallocated files",
        "written when the segment is closed or the broker stops",
        "they are in memory until then",
    ),
    "five batches in a snapshot": Difference(
        "a producer's last batch", "its last five", "all batches that a producer may repeat are kept"
    ),
    "records of groups": Difference(
        "an offset's record has version 4, the first one with tagged fields, and all have sequence numbers",
        "version 3, and no sequence numbers",
        "the fields are the same: a commit by topic name has no topic id; no idempotent producer writes them",
    ),
    "settings of the broker": Difference(
        "its own defaults and those of a cluster; many can be altered while it runs",
        "this broker's values and defaults; all are read-only",
        "a description must be true; a restart changes them",
    ),
    "a producer's last timestamp": Difference(
        "DescribeProducers shows the last batch's own time",
        "the broker's clock at its arrival",
        "a producer expires by it, and replayed records may be years old",
    ),
    "stricter with batches": Difference(
        "bytes after a batch, and log-append time, a delete horizon and unused bits in it are ignored or stored",
        "refused",
        "no client sends it, and stored data must be meaningful",
    ),
    "records are not decoded": Difference(
        "each record is checked, decompressed if necessary: its time, and the number of records in the header",
        "header and CRC are trusted, the latest time of a batch too; the number of records must fit the size",
        "records are stored unchanged, which is why it is fast",
    ),
    "unexpected errors in Kafka": Difference(
        "UNKNOWN_SERVER_ERROR: unknown codecs, negative sizes in Fetch, unknown operations on configs, Metadata of a"
        " topic without name and id",
        "INVALID_RECORD, one batch, INVALID_REQUEST",
        "the request is wrong, not the broker",
    ),
    "no response": Difference(
        "no response until the client's timeout: null records, a protocol named twice in JoinGroup",
        "a response",
        "a client must not be left waiting",
    ),
    "record errors": Difference(
        "each wrong record of a refused batch by its index (KIP-467)",
        "the first one's error in the batch's message",
        "a batch is refused as a whole in any case",
    ),
    "time of a repeated batch": Difference(
        "a repeated batch is acknowledged with its own time as if it were log-append time",
        "-1, as the first time",
        "the topic has create time",
    ),
    "repeated or empty entries": Difference(
        "of two entries for a partition one counts; a topic without partitions has no entry in the response",
        "both count, in order; every entry has a response",
        "nothing that was sent is dropped silently",
    ),
    "transactional ids of batches": Difference(
        "a batch's transactional id is checked with the first batch for a partition, and not without a producer id",
        "with every batch",
        "only the transaction's producer may write into it",
    ),
    "written form of values": Difference(
        "CreateTopics shows `.5` unchanged, DescribeConfigs 0.5", "both show 0.5", "it is one value"
    ),
    "timeouts of administrative requests": Difference(
        "REQUEST_TIMED_OUT, and the operation continues",
        "the response follows the completion",
        "no client has to repeat the request",
    ),
    "automatic topic creation": Difference(
        "Metadata returns UNKNOWN_TOPIC_OR_PARTITION until the topics exist",
        "the response has them",
        "they exist at once",
    ),
    "limits on requests": Difference(
        "100 MiB, and any number of elements",
        "a request beyond the limits of [limits.md](limits.md) closes its connection",
        "one request must not delay the others, nor use all memory",
    ),
    "SCRAM of librdkafka before 2.6.1": Difference(
        "refused, because it repeats its own nonce before the server's",
        "accepted, as by Apache Kafka 3.9.1",
        "Debian's packages have such versions, and the message still belongs to the exchange",
    ),
    "stricter with frames": Difference(
        "text that is not UTF-8 is decoded anyway, lengths below -1 count as null, 2³² - 1 tagged fields as none",
        "the connection is closed",
        "no client sends it, and an unclear request is not executed",
    ),
    "fetch sessions": Difference(
        "a Fetch may start a session (KIP-227)", "the session id is always 0", "each request names its partitions"
    ),
}

BEGIN = "<!-- Written by `python -m tests.compat.known_differences`; a test compares. -->\n"


def table() -> str:
    """Return the part of docs/compatibility.md that is generated here."""
    rows = [f"| {name} | {value.kafka} | {value.here} | {value.why} |" for name, value in KNOWN_DIFFERENCES.items()]
    head = ["| what | on Apache Kafka 4.1.1 | here | why |", "|---|---|---|---|"]
    return BEGIN + "\n" + "\n".join(head + rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
