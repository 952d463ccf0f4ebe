"""What strangers' clients and tools see otherwise than on Apache Kafka, and why; docs/limits.md has each."""

KNOWN_DIFFERENCES = {
    "group.protocol=consumer": "KIP-848's group protocol is not served: the classic protocol is whole, and the default",
    "describe a group that is not there": "DescribeGroups ends at 5, which answers state Dead; 6 has an error for it",
}
