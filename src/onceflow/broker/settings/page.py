"""Generator of the settings in docs/operating.md: `python -m onceflow.broker.settings.page docs/operating.md`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from onceflow.broker.settings.fixed import FIXED, REFUSED, WITHOUT_EFFECT
from onceflow.broker.settings.setting import Setting
from onceflow.broker.settings.table import GROUPS

BEGIN = "<!-- settings: written by python -m onceflow.broker.settings.page -->"
END = "<!-- end of settings -->"


def with_settings(page: str) -> str:
    """Return the page with the part between the marks generated again."""
    before, _, rest = page.partition(BEGIN)
    _old, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{section()}\n{END}{after}"


def section() -> str:
    """Return all settings by group, and Kafka's other settings."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for title, group in GROUPS.items():
        yield f"### {title}\n"
        for setting in group:
            yield from _setting(setting)
    yield "### Kafka settings with a fixed value\n"
    yield "Accepted only with this value, and logged. DescribeConfigs returns them.\n"
    yield "| setting | value | why |\n|---|---|---|"
    for name, (value, reason) in FIXED.items():
        yield f"| `{name}` | `{value}` | {reason} |"
    yield "\n### Kafka settings without effect\n"
    yield "They configure parts that only Kafka has. Accepted with any value, and listed in a warning at the start.\n"
    yield "With `--strict-settings` the broker does not start.\n"
    yield from _reasons(WITHOUT_EFFECT)
    yield "\n### Kafka settings that are refused\n"
    yield "A user who sets one of these relies on it, so the broker does not start.\n"
    yield from _reasons(REFUSED)
    yield ""


def _reasons(table: Mapping[str, str]) -> Iterator[str]:
    yield "| setting | why |\n|---|---|"
    for name, reason in table.items():
        yield f"| `{name}{'*' if name[-1] == '.' else ''}` | {reason} |"


def _setting(setting: Setting) -> Iterator[str]:
    short = f" (or `{setting.option}`)" if setting.option else ""
    yield f"#### {setting.name}\n"
    yield f"{setting.documentation}\n"
    yield f"- Value: {setting.kind.allowed}" + (f"; default `{setting.default}`" if setting.default else "")
    if setting.is_secret:
        yield "- Option: none, only the environment and the file, since it is secret\n"
    else:
        yield f"- Option: `{setting.options[-1]}`{short}\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_settings(target.read_text(encoding="utf-8")), encoding="utf-8")
