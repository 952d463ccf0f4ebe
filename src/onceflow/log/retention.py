"""Retention: which segments a log deletes, consumed or not.

A policy is any callable of the form of `RetentionPolicy`. The setting `log.retention.policy` names one as
`module:name`, so a program can provide its own:

    def newest_three(segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
        return max(0, len(segments) - 3)

The broker calls it every `log.retention.check.interval.ms` for each log with `cleanup.policy=delete`, in a thread of
its own. Whatever it returns, only segments wholly below the high watermark are deleted. To delete the active segment
too, a new one is created first (Kafka's UnifiedLog.deleteOldSegments).
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onceflow.errors import OnceflowError
from onceflow.log.config import LogConfig
from onceflow.log.disk import modified_ms
from onceflow.log.partition import PartitionLog
from onceflow.log.segment import Segment


class RetentionPolicyUnusable(OnceflowError):
    """The retention policy cannot be imported or returns an invalid value."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about one segment for a policy."""

    base_offset: int
    offset_end: int
    size_bytes: int
    max_timestamp_ms: int
    """Latest timestamp of its records; the file's modification time if no record has one."""
    modified_ms: int
    """When the file was last modified."""


class RetentionPolicy(Protocol):
    """A function that decides how many segments of a log to delete."""

    def __call__(self, segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
        """Return the number of segments to delete, oldest first. The last of `segments` is the active one.

        Called in a thread; it may be slow but must not raise.
        """
        ...


def by_age_and_size(segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
    """Apply `retention.bytes` and `retention.ms`: either limit is enough. A segment's age is that of its newest
    record."""
    number = _beyond_size(segments, config)
    while number < len(segments) and 0 <= config.retention_ms < now_ms - segments[number].max_timestamp_ms:
        number += 1
    return number


def by_modification_time(segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
    """Apply the same limits to the file's age, as in Kafka's first releases: record timestamps may be arbitrary."""
    number = _beyond_size(segments, config)
    while number < len(segments) and 0 <= config.retention_ms < now_ms - segments[number].modified_ms:
        number += 1
    return number


def _beyond_size(segments: Sequence[SegmentFacts], config: LogConfig) -> int:
    """Return how many segments to delete: one is deleted if at least `retention.bytes` remain without it."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    number = 0
    while config.retention_bytes >= 0 and number < len(segments) and segments[number].size_bytes <= excess_bytes:
        excess_bytes -= segments[number].size_bytes
        number += 1
    return number


def load_policy(import_path: str) -> RetentionPolicy:
    """Return the policy named by `module:name`. Raises RetentionPolicyUnusable."""
    module_name, _, name = import_path.partition(":")
    try:
        policy = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RetentionPolicyUnusable(
            f"log.retention.policy={import_path}: {error}; give it as MODULE:NAME of a callable"
        ) from error
    if not callable(policy):
        raise RetentionPolicyUnusable(
            f"log.retention.policy={import_path} is a {type(policy).__name__}; give it as MODULE:NAME of a callable"
        )
    loaded: RetentionPolicy = policy
    return loaded


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of a policy for one log."""

    log_start_offset: int
    """New start of the log; not beyond the high watermark."""
    needs_roll: bool
    """Whether to delete the active segment too, once a new one is created and the old one is synced."""


def decide(log: PartitionLog, policy: RetentionPolicy, now_ms: int) -> Decision:
    """Apply the policy to one log. Any thread. Raises RetentionPolicyUnusable."""
    high_watermark, start = log.high_watermark, log.log_start_offset
    unchanged = Decision(start, needs_roll=False)
    if not log.config.cleanup_delete:
        return unchanged
    ends = log.segments.with_ends()
    segments = [_facts(segment, end) for segment, end in ends if end > start or not segment.is_sealed]
    number = policy(segments, log.config, now_ms)
    if not isinstance(number, int) or not 0 <= number <= len(segments):
        raise RetentionPolicyUnusable(
            f"{log.name}: the retention policy returned {number!r} for {len(segments)} segments; it must return how"
            " many to delete"
        )
    expired = [segment for segment in segments[:number] if segment.offset_end <= high_watermark]
    if not expired:
        return unchanged
    needs_roll = len(expired) == len(segments) and expired[-1].size_bytes > 0
    return Decision(max(start, expired[-1].offset_end), needs_roll)


def _facts(segment: Segment, offset_end: int) -> SegmentFacts:
    changed_ms = modified_ms(segment.path)
    latest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else changed_ms
    return SegmentFacts(segment.base_offset, offset_end, segment.size_bytes, latest_ms, changed_ms)
