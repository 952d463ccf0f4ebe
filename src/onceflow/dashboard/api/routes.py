"""The table of the API's routes: path, parameters, fields of the response, and handler."""

from onceflow.dashboard.api import handlers
from onceflow.dashboard.api.table import (
    BEGIN,
    BOOLEAN,
    CONDITION,
    DURATION,
    TEXT,
    TIME,
    ZONE,
    Kind,
    Parameter,
    Route,
    choice,
    cursor,
    fields,
    integer,
)

PREFIX = "/api/v1/"
FROM = Parameter("from", TIME, "Start.  [default: 24 hours before the end]")
FROM_ALL = Parameter("from", BEGIN, "Start; all is the oldest event.  [default: 24 hours before the end]")
TO = Parameter("to", TIME, "End, exclusive.  [default: after the newest event]")
TZ = Parameter("tz", ZONE, "Time zone of hours, days, and of times without one.", default="UTC")
AT = Parameter("at", TIME, "A time of the day; later hours are not compared.  [default: the newest event]")
WHERE = Parameter(
    "where",
    CONDITION,
    "Only events with this value of a dimension; needs an archive. Several values of one dimension are alternatives, "
    "dimensions restrict together.",
    repeated=True,
)
SOURCE = Parameter(
    "source",
    choice("auto", "counts", "archive"),
    "counts are the prepared numbers as of the last micro-batch; archive is every event, as of the request. auto is "
    "the archive with filters and for what the counts do not have, else the counts.",
    default="auto",
)
BY = Parameter("by", TEXT, "Dimension that divides each window.")
VALUES = Parameter("values", integer(1, 50), "Number of values of 'by', those with most clicks.", default="10")
UID = Parameter("uid", TEXT, "User.", required=True)
ANY_UID = Parameter("uid", TEXT, "User; all users without it.")


def _users(default: bool) -> Parameter:
    explained = "Count distinct users too; null where the counts do not keep them any more (source=archive has them)."
    return Parameter("users", BOOLEAN, explained, default=str(default).lower())


def _limit(most: int, default: int) -> Parameter:
    return Parameter("limit", integer(1, most), "Maximum number of rows.", default=str(default))


def _per(*names: str) -> Parameter:
    return Parameter("per", choice(*names), "Size of a bucket.", required=True)


def _cursor(*types: type) -> Parameter:
    kind: Kind = cursor(*types)
    return Parameter("cursor", kind, "Position after the page before, from its Link header.")


_WINDOW = fields("start_ms:time end_ms:time value:text? events:count clicks:count users:count? users_exact:bool")
_COMPARED = fields(
    "start_ms:time end_ms:time before_start_ms:time before_end_ms:time events:count? clicks:count? users:count? "
    "before_events:count before_clicks:count before_users:count?"
)

ROUTES = (
    Route(
        "capabilities",
        "What this server can be asked: dimensions, retention, archive, and what is not available.",
        (),
        fields(
            "topic:text hash_key:text login:text counted:bool over_time:bool? sessions:bool? session_gap_ms:int? "
            "exact_users_max:int? dimensions:object newest_ms:time? kept_from_ms:object archive:bool timeline:bool "
            "filters:bool unavailable:object"
        ),
        handlers.capabilities,
        is_list=False,
    ),
    Route(
        "now",
        "All events acknowledged so far, and the users who are active.",
        (),
        fields(
            "live:bool as_of_ms:time? not_counted:count reason:text? events:count clicks:count users:count bad:count "
            "active:count? active_gap_ms:int? newest_ms:time?"
        ),
        handlers.now,
        is_list=False,
    ),
    Route(
        "totals",
        "Sums of a time; the counts round it out to whole minutes, or to hours or days before minutes are kept.",
        (FROM_ALL, TO, TZ, WHERE, SOURCE, _users(True)),
        _WINDOW,
        handlers.totals,
        is_list=False,
    ),
    Route(
        "series",
        "Each minute, hour or day that has events, at most 3,000; the first and the last one are whole.",
        (_per("minute", "hour", "day"), FROM_ALL, TO, TZ, BY, VALUES, _users(False), WHERE, SOURCE),
        _WINDOW,
        handlers.series,
    ),
    Route(
        "windows",
        "Windows of any length and slide of whole minutes, as 'onceflow windows' prints them.",
        (
            Parameter("length", DURATION, "Length of a window.", required=True),
            Parameter("slide", DURATION, "Time from one start to the next.  [default: the length]"),
            BY,
            VALUES,
            FROM,
            TO,
            TZ,
        ),
        _WINDOW,
        handlers.windows,
    ),
    Route(
        "today",
        "Each hour of a day beside the same hour of the day before.",
        (AT, TZ, WHERE, SOURCE, _users(False)),
        _COMPARED,
        handlers.today,
    ),
    Route(
        "today/total",
        "A day so far beside the day before up to the same time.",
        (AT, TZ, WHERE, SOURCE, _users(True)),
        _COMPARED,
        handlers.today_total,
        is_list=False,
    ),
    Route(
        "top",
        "Values of a dimension, or users, with most clicks.",
        (
            Parameter("dimension", TEXT, "Dimension, such as os; uid for users.", required=True),
            FROM_ALL,
            TO,
            TZ,
            WHERE,
            SOURCE,
            _limit(1_000, 10),
        ),
        fields("value:text events:count? clicks:count"),
        handlers.top,
    ),
    Route(
        "users",
        "Users with most clicks first; with 'search' those whose uid contains the text, in no order.",
        (
            Parameter("search", TEXT, "Part of the uid. The rows may then be some hundred more than the limit."),
            _limit(200, 50),
            _cursor(int),
        ),
        fields("uid:text clicks:count"),
        handlers.users,
    ),
    Route(
        "user",
        "One user's clicks and number of sessions.",
        (UID,),
        fields("uid:text clicks:count live:bool active:bool? last_ms:time? sessions:count?"),
        handlers.user,
        is_list=False,
    ),
    Route(
        "sessions",
        "Sessions that started in a time, newest first; of one user by default all that are kept.",
        (ANY_UID, FROM, TO, TZ, _limit(1_000, 100), _cursor(int, str)),
        fields("uid:text started_ms:time ended_ms:time events:count clicks:count"),
        handlers.sessions,
    ),
    Route(
        "sessions/summary",
        "Number and means of the sessions that started in a time.",
        (FROM, TO, TZ),
        fields("sessions:count users:count mean_events:number? mean_seconds:number? active:count"),
        handlers.sessions_summary,
        is_list=False,
    ),
    Route(
        "sessions/series",
        "Sessions of each hour or day, in UTC, in which any started.",
        (_per("hour", "day"), FROM, TO, TZ),
        fields("start_ms:time end_ms:time sessions:count mean_events:number mean_seconds:number"),
        handlers.sessions_series,
    ),
    Route(
        "timeline",
        "One user's events, newest first; needs an archive.",
        (UID, FROM, TO, TZ, WHERE, _limit(1_000, 100), _cursor(int, int, int)),
        fields("time_ms:time clicks:count os:text no_time:bool future:bool partition:int offset:count extra:text?"),
        handlers.timeline,
    ),
    Route(
        "latest",
        "Newest records of the log, at most a quarter of a second old; a bad event has a reason.",
        (_limit(200, 50),),
        fields(
            "partition:int offset:count timestamp_ms:time time_ms:time? uid:text? clicks:count? os:text? extra:text? "
            "reason:text?"
        ),
        handlers.latest,
    ),
    Route(
        "quality",
        "Numbers of all counted events, and of those that are bad, late, or without a time of their own.",
        (),
        fields("events:count bad:count late:count? no_time:count? future:count?"),
        handlers.quality,
        is_list=False,
    ),
    Route("bad", "Bad events by reason.", (), fields("reason:text events:count"), handlers.bad),
    Route(
        "bad/records",
        "Newest bad events, with the beginning of their content.",
        (_limit(100, 20),),
        fields("partition:int offset:count reason:text timestamp_ms:time? value:text?"),
        handlers.bad_records,
    ),
    Route(
        "health",
        "State of Redis, the broker, the stream and the archive, and the last recorded verification.",
        (),
        fields(
            "ok:bool redis:object broker:object lag:object? batch:object? events_per_second:number? "
            "stopped_since_ms:time? batches:object links:object archive:object? verify:object?"
        ),
        handlers.health,
        is_list=False,
    ),
)
