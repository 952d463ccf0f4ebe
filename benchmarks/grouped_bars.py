"""A picture of bars in groups, on a scale of tens, as SVG."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#0b6e4f", "#6bbf59", "#a4161a", "#f28482", "#1d4e89", "#7fb2e5")
WIDTH, LABEL_WIDTH, RIGHT = 900, 130, 60
BAR, GAP, TOP = 11, 12, 54
FONT = 'font-family="sans-serif" font-size="12" fill="#222"'


@dataclass(frozen=True)
class Group:
    """Bars side by side under one label: name → value above 0. All groups have the same names."""

    label: str
    values: Mapping[str, float]


def picture(title: str, groups: Sequence[Group]) -> str:
    """The whole file."""
    names = list(groups[0].values)
    legend_bottom = TOP + 18 * len(names)
    height = legend_bottom + len(groups) * (BAR * len(names) + GAP) + 40
    values = [value for group in groups for value in group.values.values()]
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def across(value: float) -> float:
        return LABEL_WIDTH + (WIDTH - LABEL_WIDTH - RIGHT) * (math.log10(value) - least) / max(1, most - least)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        text(16, 26, title, 'font-size="15"'),
        *legend(names),
        *(scale(10.0**power, across(10.0**power), legend_bottom, height) for power in range(least, most + 1)),
    ]
    for number, group in enumerate(groups):
        top = legend_bottom + 8 + number * (BAR * len(names) + GAP)
        lines.append(text(16, top + BAR * len(names) / 2 + 4, group.label))
        for place, value in enumerate(group.values.values()):
            y, end = top + place * BAR, across(value)
            lines.append(rectangle(LABEL_WIDTH, y, end - LABEL_WIDTH, BAR - 2, COLOURS[place]))
            lines.append(text(end + 4, y + BAR - 2, f"{value:.2f}" if value < 10 else f"{value:.0f}", 'font-size="9"'))
    return "\n".join([*lines, "</svg>"]) + "\n"


def legend(names: Sequence[str]) -> Iterator[str]:
    """A line for each colour."""
    for place, name in enumerate(names):
        y = TOP - 12 + 18 * place
        yield rectangle(16, y, 12, 12, COLOURS[place])
        yield text(34, y + 10, name)


def scale(value: float, x: float, top: float, height: float) -> str:
    """One upright line with its value at the bottom."""
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 28}" stroke="#ccc"/>'
    return line + "\n" + text(x, height - 12, f"{value:g} s", 'text-anchor="middle"')


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled one."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def text(x: float, y: float, content: str, style: str = "") -> str:
    """One line."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'
