"""What strangers' clients and tools see otherwise than on Apache Kafka, and why.

docs/limits.md and docs/log-format.md say the same to users."""

KNOWN_DIFFERENCES = {
    "group.protocol=consumer": "KIP-848's group protocol is not served: the classic protocol is whole, and the default",
    "describe a group that is not there": "DescribeGroups ends at 5, which answers state Dead; 6 has an error for it",
    "commit after a time-out": "EndTxn ends at 3, which says ProducerFenced; 5 says InvalidTxnState",
    "synonyms of retention.ms": "the default is shown as well, where Kafka knows none for those given in other units",
    "eligible leader replicas": "there are no replicas: TopicCommand shows N/A",
    "ListOffsets above 7": "only tiered storage asks there, for earliest-local and the like",
    "configs of tiered storage, throttles and compression levels": "there is nothing that they would configure",
    "APIs and versions": "docs/protocol.md: those of a plain 3.x broker, without clusters, SASL and ACLs",
    "FeatureCommand": "no features are finalized, so the table is empty",
    "AclCommand": "there are no ACLs: the client says that the node does not support them",
    "indexes of the open segment": "they are in memory, and written when the segment is closed or the broker stops",
    "five batches in a snapshot": "all that a producer may repeat is kept; Kafka's snapshot has its last batch alone",
}
