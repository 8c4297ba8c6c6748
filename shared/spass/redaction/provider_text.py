"""What of a provider's own words may reach a caller."""

import re
from collections.abc import Sequence
from typing import Final

from spass.redaction.patterns import AWS_SECRET, AWS_SECRET_NAME, CREDENTIAL, PRIVATE_KEY_LINES
from spass.redaction.text import redact_environment

MAX_MESSAGE_CHARACTERS: Final = 500
REDACTED: Final = "[…]"
"""Stands for what was taken out."""

_LONG_SECRET: Final = 12  # characters

# Top-level domains, and the names that private networks use as such. A word of prose may stand after a full stop without a space,
# and a field of a body after its parent, so what is also such a word counts only at the end of a longer name.
_TOP_LEVEL_DOMAINS: Final = (
    "ai|app|arpa|au|aws|biz|br|ca|cc|ch|cloud|cluster|cn|com|corp|cz|de|dev|dk|edu|es|eu|fi|fr|gg|gov|gr|home|host|ie|il|info"
    "|internal|intra|intranet|io|jp|kr|lan|local|localdomain|localhost|mil|mx|net|nl|nz|online|org|pl|pt|ru|se|sg|site|svc"
    "|systems|tech|tr|tv|tw|uk|xyz|za"
)
_WORDLIKE_DOMAINS: Final = "at|be|co|fm|hk|in|is|it|ly|me|network|no|page|run|sh|so|test|to|us"

_NAMED_KEY: Final = AWS_SECRET_NAME.pattern.removesuffix(r"\Z") + AWS_SECRET.pattern
_HEX: Final = "[0-9a-fA-F]{1,4}"
_SECRETS: Final = (
    re.compile(r"Traceback \(most recent call last\).*", re.DOTALL),
    PRIVATE_KEY_LINES,
    re.compile(_NAMED_KEY),
    CREDENTIAL,
    *map(
        re.compile,
        (
            r"(?i)\b[a-z][a-z0-9+.-]*://\S+",  # URLs
            r"\barn:[\w:/.*-]+",
            r"(?i)\bbearer\s+\S+",
            r"\beyJ[-_A-Za-z0-9]{5,}(?:\.[-_A-Za-z0-9]*)*",  # JSON Web Tokens
            r"\b(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{8,}",
            # keys that nothing but a key begins like; half masked ones too
            r"\b(?:sk-|[spr]k_(?:live|test)_|xai-|gsk_|hf_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza)[-_A-Za-z0-9*.]{4,}",
            r"\b(?:sk|pk|rk|org|proj|key)[-_][-_A-Za-z0-9*.]*[0-9*][-_A-Za-z0-9*.]{3,}",
            r"(?<![\w-])\w[\w-]*\*{3,}[\w*-]*",  # any other half masked key
            r"\b[A-Za-z]:\\[^\s'\"]*(?: [^\s'\"\\]+\\[^\s'\"]*)*",  # paths of Windows, its shares
            r"\\\\[\w.$-]+\\[^\s'\"]*",
            r"\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%\w+)?\](?::\d+)?",  # IPv6
            rf"(?<![\w:.])(?:{_HEX}(?::{_HEX}){{7}}|{_HEX}(?::{_HEX})*::(?:{_HEX}(?::{_HEX})*)?|::{_HEX}(?::{_HEX})*)(?![\w:])",
            r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b",
            r"(?i)(?<![\w.-])[a-z][a-z0-9.-]*:(?:80|443|[1-9]\d{3,4})(?!\w)(?:/\S*)?",  # hosts
            rf"(?i)(?<![\w.-])(?:[a-z0-9-]+\.)+(?:{_TOP_LEVEL_DOMAINS})\b(?![\w-])(?::\d+)?(?:/\S*)?",
            rf"(?i)(?<![\w.-])(?:[a-z0-9-]+\.){{2,}}(?:{_WORDLIKE_DOMAINS})\b(?![\w-])(?::\d+)?(?:/\S*)?",
            r"(?<![\w/.<#])(?:~|\.{1,2})?/(?:[\w@-]|\.\w)[\w.@-]*(?:/[\w.@-]*)*",  # paths
        ),
    ),
)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f\x80-\x9f]+")


def redact_provider_text(text: str, *, secrets: Sequence[str] = ()) -> str:
    """``text`` on one line of at most 500 characters, without keys, URLs, hosts, paths and ARNs, and without ``secrets``."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        # A short one not inside a word: a host may be called "gpu".
        literal = re.escape(secret)
        text = re.sub(literal if len(secret) >= _LONG_SECRET else rf"(?<!\w){literal}(?!\w)", REDACTED, text, flags=re.IGNORECASE)
    text = redact_environment(text[: MAX_MESSAGE_CHARACTERS * 4])
    for pattern in _SECRETS:
        text = pattern.sub(REDACTED, text)
    text = _CONTROLS.sub(" ", text).encode(errors="replace").decode().strip()
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 1] + "…"
