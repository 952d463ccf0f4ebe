"""The Kafka sink: executors encode, the driver sends, one transaction for each micro-batch."""
