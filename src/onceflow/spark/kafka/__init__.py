"""The Kafka sink: executors encode, the driver sends, one transaction per micro-batch."""
