"""What of a provider's own words may reach a caller."""

import re
from typing import Final

LONGEST: Final = 500

_SECRETS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)\b[a-z][a-z0-9+.-]*://\S+",  # URLs
        r"\barn:[\w:/.*-]+",
        # keys, also half masked ones
        r"\b(?:(?:sk|pk|rk|xai|org|proj|key|gsk)[-_]|AKIA|ASIA|eyJ)[-_A-Za-z0-9*.]*[0-9*][-_A-Za-z0-9*.]{3,}",
        r"(?i)\bbearer\s+\S+",
        r"(?i)\b(?:[a-z0-9-]+\.)+(?:com|net|org|io|ai|dev|local|internal|aws)\b(?::\d+)?(?:/\S*)?",  # hosts
        r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b",
        r"(?<![\w/.])(?:~|\.{1,2})?/(?:[\w.@-]+/)+[\w.@-]*",  # paths
    )
)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f\x80-\x9f]+")


def scrub(text: str, *, secret: str | None = None) -> str:
    """``text`` on one line of at most 500 characters, without keys, URLs, hosts, paths and ARNs, and without ``secret``."""
    text = text[: LONGEST * 4]
    if secret:
        text = text.replace(secret, "[…]")
    for pattern in _SECRETS:
        text = pattern.sub("[…]", text)
    text = _CONTROLS.sub(" ", text).encode(errors="replace").decode().strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
