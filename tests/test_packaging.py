"""Metadata of the wheel, as the build backend computes it."""

import re
import tomllib
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!https?:)([^)]+)\)")


def test_description_has_no_links_to_files() -> None:
    """A package index shows the description; no address there would lead to docs/."""
    readme = (ROOT / "README.md").read_text()
    shown = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    assert LINK.search(readme) and not LINK.findall(shown)
    text = " ".join(shown.split())
    assert "Other ways to install (docs/install.md);" in text
    assert "work with it (compatibility: docs/compatibility.md)." in text
    assert "Sinks for Kafka (docs/kafka-sink.md) and Redis (docs/redis-sink.md)" in text
    headings = re.compile(r"^#+ .*", re.MULTILINE)
    assert headings.findall(shown) == headings.findall(readme)


def test_source_distribution_has_the_linked_files() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    linked = {path.partition("/")[0] for path in LINK.findall((ROOT / "README.md").read_text())}
    assert linked - set(included["include"]) == set()
