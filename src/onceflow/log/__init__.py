"""One partition's log on disk, in Kafka's own file names and formats: segments, indexes, recovery, producer state."""
