"""Report of one day or week: an HTML file with plots as inline SVG, which loads nothing.

The numbers come from `onceflow.clicks.queries`.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from onceflow.clicks.queries import WIDTHS_MS, Events, Row, Selection

DAY_MS = WIDTHS_MS["day"]
TOP_COUNT = 10
WIDTH, HEIGHT, LEFT, BOTTOM = 860, 200, 56, 22
GRID_LINES = 4
DAY_HOURS = 24
VALUE_CHARACTERS_MAX = 60
LABELS_MAX = 12

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: #fff; --bar: #2f6fb5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf1; --soft: #a3adba; --line: #38414d; --page: #14181d; --bar: #6aa8ea; }
}
body { margin: 2rem auto; max-width: 920px; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
p, figcaption, small { color: var(--soft); } figure { margin: 0; overflow-x: auto; }
svg { width: 100%; min-width: 600px; height: auto; }
svg text { fill: var(--soft); font-size: 12px; } svg line { stroke: var(--line); } svg rect { fill: var(--bar); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 1rem; margin: 1.5rem 0; }
dl div { border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; }
dt { color: var(--soft); } dd { margin: 0; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: right; font-weight: normal; }
th:first-child { text-align: left; overflow-wrap: anywhere; } thead th { color: var(--soft); }
td.share { width: 40%; } td.share span { display: block; height: .8em; border-radius: 2px; background: var(--bar); }
summary { color: var(--soft); cursor: pointer; }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of a report; the hours, and in a week the days, are only those with events."""

    begin_ms: int
    end_ms: int
    topic: str
    ends: dict[int, int]
    totals: Row
    hours: list[Row]
    days: list[Row]
    tops: dict[str, list[Row]]

    @property
    def period(self) -> str:
        """The day, or the first and last day."""
        first, last = _day(self.begin_ms), _day(self.end_ms - DAY_MS)
        return first if first == last else f"{first} to {last}"


def build_report(events: Events, first_day: date, days: int, dimensions: Sequence[str]) -> Report:
    """Return the numbers of `days` days in UTC, with the top values of these dimensions."""
    begin_ms = int(datetime(first_day.year, first_day.month, first_day.day, tzinfo=UTC).timestamp()) * 1000
    selection = Selection(begin_ms, begin_ms + days * DAY_MS)
    return Report(
        begin_ms,
        begin_ms + days * DAY_MS,
        events.topic,
        dict(events.ends),
        events.totals(selection),
        events.counts("hour", selection, users=True),
        events.counts("day", selection, users=True),
        {name: events.top(name, selection, count=TOP_COUNT) for name in dimensions},
    )


def render(report: Report) -> str:
    """Return the report as one HTML document."""
    offsets = ", ".join(f"{partition}: {end}" for partition, end in sorted(report.ends.items()))
    plots = [_section(report, report.hours, "hour", number) for number in ("clicks", "users")]
    if report.end_ms - report.begin_ms > DAY_MS:
        plots.append(_section(report, report.days, "day", "users"))
    tops = [_top(name, rows) for name, rows in report.tops.items()]
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Clicks, {report.period}</title>
<style>{_STYLE}</style>
<h1>Clicks, {report.period}</h1>
<p>All times are UTC. Topic {_text(report.topic)}, exact up to the offsets {offsets}.</p>
{_numbers(report.totals)}
{"".join(plots)}
{"".join(tops)}
</html>
"""


def _numbers(totals: Row) -> str:
    words = {
        "events": "events",
        "clicks": "clicks",
        "users": "distinct users",
        "no_time": "without a time",
        "future": "with a future time",
    }
    cells = (f"<div><dt>{word}</dt><dd>{totals[name]:,}</dd></div>" for name, word in words.items())
    return f"<dl>{''.join(cells)}</dl>"


def _section(report: Report, rows: Sequence[Row], per: str, number: str) -> str:
    """Return a plot of one number, and the same as a table."""
    by_start = {row["start_ms"]: row for row in rows}
    starts = range(report.begin_ms, report.end_ms, WIDTHS_MS[per])
    bars = [(start, by_start[start][number] if start in by_start else 0) for start in starts]
    title = f"{number.capitalize()} per {per}"
    lines = "".join(
        f"<tr><th scope=row>{_moment(row['start_ms'])}<td>{row['events']:,}<td>{row['clicks']:,}<td>{row['users']:,}"
        for row in rows
    )
    heads = "".join(f"<th scope=col>{name}" for name in (per, "events", "clicks", "users"))
    table = f"<table><thead><tr>{heads}<tbody>{lines}</table>"
    return (
        f"<h2>{title}</h2><figure>{_plot(title, bars)}</figure>"
        f"<details><summary>As a table</summary>{table}</details>\n"
    )


def _plot(title: str, bars: Sequence[tuple[int, int]]) -> str:
    top = _round_up(max(value for _, value in bars))
    step = (WIDTH - LEFT) / len(bars)
    every = DAY_HOURS if len(bars) > DAY_HOURS else math.ceil(len(bars) / LABELS_MAX)
    parts = []
    for line in range(GRID_LINES + 1):
        y = HEIGHT - HEIGHT * line / GRID_LINES + 8
        value = top * line // GRID_LINES
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
    label = _hour if len(bars) == DAY_HOURS else _day
    for number, (start_ms, value) in enumerate(bars):
        x, height = LEFT + number * step, HEIGHT * value / top
        parts.append(
            f'<rect x="{x + step * 0.1:.2f}" y="{HEIGHT - height + 8:.2f}" width="{step * 0.8:.2f}" '
            f'height="{height:.2f}"><title>{_moment(start_ms)}: {value:,}</title></rect>'
        )
        if number % every == 0:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT + BOTTOM + 4}">{label(start_ms)}</text>')
    size = f"0 0 {WIDTH} {HEIGHT + BOTTOM + 8}"
    return f'<svg viewBox="{size}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _round_up(value: int) -> int:
    """Return the end of an axis: a multiple of GRID_LINES with one or two digits that are not 0, at least `value`."""
    if value <= GRID_LINES:
        return GRID_LINES
    unit: int = 10 ** (len(str(value)) - 1)
    ends = (unit * part for part in (1, 2, 4, 6, 8, 10, 12))
    return next(end for end in ends if end >= value and end % GRID_LINES == 0)


def _top(name: str, rows: Sequence[Row]) -> str:
    most = max((row["clicks"] for row in rows), default=0) or 1
    lines = "".join(
        f"<tr><th scope=row>{_text(row['value'])}<td>{row['events']:,}<td>{row['clicks']:,}"
        f'<td class=share><span style="width:{100 * row["clicks"] / most:.1f}%"></span>'
        for row in rows
    )
    heads = "".join(f"<th scope=col>{word}" for word in (_text(name), "events", "clicks", ""))
    return f"<h2>Top {_text(name)}</h2><table><thead><tr>{heads}<tbody>{lines}</table>\n"


def _text(value: str) -> str:
    shown = value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[: VALUE_CHARACTERS_MAX - 1]}…"
    return html.escape(shown)


def _day(start_ms: int) -> str:
    return str(date(1970, 1, 1) + timedelta(milliseconds=start_ms))


def _hour(start_ms: int) -> str:
    return f"{start_ms % DAY_MS // WIDTHS_MS['hour']:02d}:00"


def _moment(start_ms: int) -> str:
    return f"{_day(start_ms)} {_hour(start_ms)}"
