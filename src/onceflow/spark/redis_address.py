"""A Redis address as it may be shown: in a sentence, a log, a page."""

import re


def shown(url: str) -> str:
    """The URL with user and password, and a password in its query, taken out."""
    without_user = re.sub(r"^([\w+]+://)[^/]*@", r"\1", url)
    return re.sub(r"([?&](?:user|username|password)=)[^&]*", r"\1…", without_user)
