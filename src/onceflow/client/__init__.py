"""The client: talks to any Kafka over blocking sockets, and to librdkafka where events are produced.

`cluster.Cluster` is the way in: metadata, offsets, fetches, topics and group offsets. `records` turns fetches into
records, `producer` sends events through librdkafka. Nothing here knows Spark or our own broker. One `Cluster`
belongs to one thread.
"""
