"""Partitions on disk as a broker runs them: group commit, housekeeping, compaction, closing."""
