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

logger = logging.getLogger(__name__)


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
    """Log as JSON if that is the format: notes and errors of the command too."""
    if name == JSON:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
        logging.getLogger("onceflow").setLevel(logging.INFO)


def use_text_with_times() -> None:
    """Log with times from INFO on, unless the format is JSON; for servers."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=TEXT_LAYOUT)


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
