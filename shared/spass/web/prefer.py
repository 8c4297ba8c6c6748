"""The header ``Prefer``: a client's preferences for the answer (https://www.rfc-editor.org/rfc/rfc7240)."""

import re
from typing import Final

from starlette.datastructures import Headers

RESPOND_ASYNC: Final = "respond-async"
PREFERENCE_APPLIED: Final = "Preference-Applied"

PREFER_HEADER: Final = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async`: do not wait, answer 202 at once (RFC 7240).",
    "schema": {"type": "string"},
}
"""The header as OpenAPI describes it."""

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')


def prefers(headers: Headers, preference: str) -> bool:
    """Return True if the headers name ``preference`` (in lower case), with or without a value and parameters."""
    # A quoted value may contain text that looks like another preference.
    preferences = _QUOTED.sub("", ",".join(headers.getlist("prefer"))).split(",")
    return any(re.split("[;=]", part, maxsplit=1)[0].strip().lower() == preference for part in preferences)
