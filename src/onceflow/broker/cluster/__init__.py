"""Brokers registered in ZooKeeper, with Kafka's own paths and values."""
