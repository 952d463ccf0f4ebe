"""Exactly-once mirror of topics from one Kafka cluster to another (docs/mirror.md).

`run.Mirror` is the whole: it reads batches from the source (`copying`), writes them with their positions (`positions`)
and the map of their offsets (`offset_map`) in one transaction of the target, and keeps topics alike (`topics`).
`groups` translates committed offsets of consumer groups.
"""
