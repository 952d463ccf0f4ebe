"""The same requests sent to Apache Kafka and to our broker, their answers compared field by field."""
