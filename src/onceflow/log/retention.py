"""Which segments a log no longer keeps, whether or not anybody has read them.

A policy is any callable of the form of `RetentionPolicy`; the setting `log.retention.policy` names one as
`module:name`, so that a program can bring its own:

    def newest_three(segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
        return max(0, len(segments) - 3)

The broker asks it every `log.retention.check.interval.ms` for each log with `cleanup.policy=delete`, in a thread of
its own. Whatever it answers, only segments wholly below the high watermark are deleted; where it wants the last one,
which grows, to go too, a new one is begun first (Kafka's UnifiedLog.deleteOldSegments).
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
    """The retention policy cannot be imported or answers nonsense."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a policy is told of one segment."""

    base_offset: int
    offset_end: int
    size_bytes: int
    max_timestamp_ms: int
    """Of its records; that of the file's last change where no record has one."""
    modified_ms: int
    """When its file was changed last."""


class RetentionPolicy(Protocol):
    """Decides how much of a log goes."""

    def __call__(self, segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
        """How many of a log's segments to delete, counted from the oldest on. The last of `segments` is the active one.

        Called in a thread; it may take its time but must not raise.
        """
        ...


def by_age_and_size(segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
    """`retention.bytes` and `retention.ms`: either limit is enough, age being that of a segment's newest record."""
    number = _beyond_size(segments, config)
    while number < len(segments) and 0 <= config.retention_ms < now_ms - segments[number].max_timestamp_ms:
        number += 1
    return number


def by_modification_time(segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
    """The same, age being that of the file, as in Kafka's first releases: records may be dated as they like."""
    number = _beyond_size(segments, config)
    while number < len(segments) and 0 <= config.retention_ms < now_ms - segments[number].modified_ms:
        number += 1
    return number


def _beyond_size(segments: Sequence[SegmentFacts], config: LogConfig) -> int:
    """A segment goes if at least `retention.bytes` are left without it."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    number = 0
    while config.retention_bytes >= 0 and number < len(segments) and segments[number].size_bytes <= excess_bytes:
        excess_bytes -= segments[number].size_bytes
        number += 1
    return number


def load_policy(import_path: str) -> RetentionPolicy:
    """The policy that `module:name` names. Raises RetentionPolicyUnusable."""
    module_name, _, name = import_path.partition(":")
    try:
        policy = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RetentionPolicyUnusable(
            f"log.retention.policy={import_path}: {error}; name it as MODULE:NAME of a callable"
        ) from error
    if not callable(policy):
        raise RetentionPolicyUnusable(f"log.retention.policy={import_path} is a {type(policy).__name__}, no callable")
    found: RetentionPolicy = policy
    return found


@dataclass(frozen=True, slots=True)
class Decision:
    """What retention wants of one log."""

    log_start_offset: int
    """Where the log begins afterwards; not beyond the high watermark."""
    needs_roll: bool
    """Whether the active segment is to go, too, once a new one was begun and the old one is synced."""


def decide(log: PartitionLog, policy: RetentionPolicy, now_ms: int) -> Decision:
    """Ask the policy about one log. Any thread. Raises RetentionPolicyUnusable."""
    high_watermark, start = log.high_watermark, log.log_start_offset
    unchanged = Decision(start, needs_roll=False)
    if not log.config.cleanup_delete:
        return unchanged
    ends = log.segments.with_ends(log.log_end_offset)
    segments = [_facts(segment, end) for segment, end in ends if end > start or not segment.is_sealed]
    wanted = policy(segments, log.config, now_ms)
    if not isinstance(wanted, int) or not 0 <= wanted <= len(segments):
        raise RetentionPolicyUnusable(
            f"{log.name}: the retention policy answered {wanted!r} for {len(segments)} segments; it names how many to"
            " delete"
        )
    gone = [segment for segment in segments[:wanted] if segment.offset_end <= high_watermark]
    if not gone:
        return unchanged
    needs_roll = len(gone) == len(segments) and gone[-1].size_bytes > 0
    return Decision(max(start, gone[-1].offset_end), needs_roll)


def _facts(segment: Segment, offset_end: int) -> SegmentFacts:
    changed_ms = modified_ms(segment.path)
    latest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else changed_ms
    return SegmentFacts(segment.base_offset, offset_end, segment.size_bytes, latest_ms, changed_ms)
