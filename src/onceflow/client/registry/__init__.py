"""A consumer group's nodes in ZooKeeper, as Kafka's clients before 2.0 wrote them (kafka.consumer, Kafka 1.1)."""
