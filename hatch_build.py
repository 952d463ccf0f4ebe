"""The package's description: README.md without links to files of the repository, which an index cannot follow."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)]*)\)")
NOTE = "\nThe files named here are in the source distribution.\n"


class CustomMetadataHook(MetadataHookInterface):
    """Sets the field `readme`; hatchling finds the class in this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        readme = Path(self.root, "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme)}


def description(readme: str) -> str:
    """Return the text without images, and with `text: path` or `path` in place of each link to a file."""
    return LINK.sub(_shown, IMAGE.sub("", readme)) + NOTE


def _shown(link: re.Match[str]) -> str:
    text, path = link.groups()
    in_parentheses = link.string[link.start() - 1] == "(" and link.string[link.end()] == ")"
    return path if text == path else f"{text}: {path}" if in_parentheses else f"{text} ({path})"
