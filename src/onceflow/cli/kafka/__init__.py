"""Commands for any Kafka: topics, records, groups, configurations and transactions."""
