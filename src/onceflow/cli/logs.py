"""The log on standard error: text for people, or JSON objects for programs that collect logs."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

import click

JSON = "json"
FORMATS = ("text", JSON)
TEXT_LAYOUT = "%(asctime)s %(levelname)s %(message)s"

CONTROL_CHARACTERS = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Characters that end a line or control a terminal → how they are written."""

logger = logging.getLogger(__name__)


class TextLines(logging.Formatter):
    """One line per message, with control characters escaped: a client may choose a part of it, such as a name."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line of a record without its stack trace."""
        record.message = record.message.translate(CONTROL_CHARACTERS)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object per line: time (ISO 8601, UTC), level, logger, message, and exception with its stack trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def use_format(_context: click.Context, _parameter: click.Parameter, name: str) -> None:
    """Log as JSON if that is the format: notes and errors of the command too; otherwise as text, a line per message."""
    if name == JSON:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
        logging.getLogger("onceflow").setLevel(logging.INFO)
    elif logging.lastResort is not None:
        logging.lastResort.setFormatter(TextLines())


def use_text_with_times() -> None:
    """Log with times from INFO on, unless the format is JSON; for servers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines(TEXT_LAYOUT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def is_json() -> bool:
    """Return whether the log is JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def print_error(text: str) -> None:
    """Print an error on standard error, in the format of the log."""
    print_line(text, logging.ERROR)


def print_line(text: str, level: int = logging.INFO) -> None:
    """Print a text on standard error, in the format of the log."""
    if is_json():
        logger.log(level, "%s", text.removeprefix("onceflow: "))
    else:
        click.echo(text, err=True)
