"""Errors of the API as responses: a status, a code for programs, and the message."""

from onceflow.clicks.archive_errors import ArchiveFailed, ArchiveUnreadable, QueryRefused
from onceflow.clicks.counted import NotCounted, Removed
from onceflow.clicks.results import NoConsistentSnapshot, NothingCounted, OtherJob, RedisUnreachable
from onceflow.clicks.windows import TooMuch, WrongWindow
from onceflow.client.errors import ClientError, UnknownTopic
from onceflow.dashboard.api.service import NoArchive, OtherArchive
from onceflow.dashboard.api.table import BadParameter
from onceflow.dashboard.api.workers import Busy, TimedOut
from onceflow.dashboard.sources import NotOurs
from onceflow.errors import OnceflowError


class NoUser(OnceflowError):
    """A user without events."""


REFUSALS: tuple[tuple[type[OnceflowError], int, str, str], ...] = (
    (BadParameter, 400, "bad-parameter", "a parameter is unknown, missing, repeated or not valid"),
    (WrongWindow, 400, "bad-parameter", "buckets do not divide these windows"),
    (TooMuch, 400, "too-large", "the query needs more than one request may read"),
    (NoUser, 404, "no-user", "the user has no event"),
    (NothingCounted, 404, "nothing-counted", "no micro-batch was counted yet"),
    (NotCounted, 404, "not-counted", "the job does not count this, and there is no archive to ask"),
    (NoArchive, 404, "no-archive", "only an archive has this, and the server has none"),
    (UnknownTopic, 404, "no-topic", "the topic does not exist"),
    (OtherJob, 409, "other-job", "another job's counts are under the hash key"),
    (NotOurs, 409, "other-job", "other data is under the hash key"),
    (OtherArchive, 409, "other-archive", "the archive has other events than those that are counted"),
    (Removed, 410, "removed", "retention has removed this, and there is no archive to ask"),
    (RedisUnreachable, 503, "redis", "Redis does not respond"),
    (NoConsistentSnapshot, 503, "unsettled", "no micro-batch is complete"),
    (ClientError, 503, "broker", "the broker does not respond"),
    (Busy, 503, "busy", "too many requests are running or waiting"),
    (TimedOut, 504, "timeout", "the query took too long and was cancelled"),
    (ArchiveUnreadable, 404, "no-archive", "the directory has no archive yet, or one of another version"),
    (QueryRefused, 503, "archive-behind", "the archive is too far behind the log"),
    (ArchiveFailed, 503, "archive", "the archive's files cannot be read"),
    (OnceflowError, 503, "unavailable", "the query has no response now"),
)
"""Error → status, code and meaning; the first class that fits."""


def refusal(error: OnceflowError) -> tuple[int, str]:
    """Return the status and the code of an error."""
    return next((status, code) for kind, status, code, _ in REFUSALS if isinstance(error, kind))
