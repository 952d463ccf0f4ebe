"""The same requests sent to Apache Kafka and to Onceflow, with a comparison of every field of the responses."""
