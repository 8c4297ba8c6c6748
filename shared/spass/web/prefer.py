"""The header ``Prefer``: a client's preferences for the answer (https://www.rfc-editor.org/rfc/rfc7240)."""

import re
from typing import Final

from starlette.datastructures import Headers

RESPOND_ASYNC: Final = "respond-async"
PREFERENCE_APPLIED: Final = "Preference-Applied"
"""The header of an answer that names the preference that was applied."""

PREFER_PARAMETER: Final = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async`: answer 202 immediately and do the work in the background (RFC 7240).",
    "schema": {"type": "string"},
}
"""The OpenAPI parameter object of the header."""

_QUOTED_VALUE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')


def prefers(headers: Headers, preference: str) -> bool:
    """Return True if the headers name ``preference``, with or without a value and parameters. Pass it in lower case."""
    # A quoted value may contain text that looks like another preference.
    preferences = _QUOTED_VALUE.sub("", ",".join(headers.getlist("prefer"))).split(",")
    return any(re.split("[;=]", part, maxsplit=1)[0].strip().lower() == preference for part in preferences)
