"""Kafka's protocol and record formats as values: bytes in, values out; no socket, no file, no clock."""
