"""What is ours and goes to nobody: the last look at what leaves in an error or in the log, whatever wrote it."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

from spass.core.messages import Json
from spass.redaction.patterns import CREDENTIAL, LOGIN, PRIVATE_KEY_LINES

_GONE: Final = "[…]"
_SHORTEST: Final = 8
_NAMES: Final = (
    "SPASS_TABLE",
    "SPASS_BUCKET",
    "SPASS_QUEUE",
    "SPASS_INGEST_MACHINE",
    "SPASS_COMPACTION_QUEUE",
    "SPASS_COMPACTION_MACHINE",
)
_CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_PLACES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\barn:aws[\w-]*:[^\s\"'<>,]+",
        r"(?i)\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>]+",
        r"(?i)(?<![a-z0-9.-])[a-z0-9.-]+\.(?:amazonaws\.com|api\.aws|on\.aws)(?:\.cn)?\b[^\s\"'<>,]*",
        r"(?<![\w.])/(?:var|opt|tmp|home|root|usr|etc|mnt|srv|app|private|Users|Library|proc|dev)/[^\s\"'<>,:;)]+",
        r"(?<![\w.@+/-])(?:[\w.@+-]*/)+[\w.@+-]+\.(?:py|pyc|so|ya?ml|env|pem|key)\b",
        r"\b[A-Za-z]:\\[^\s\"'<>]+",
    )
)
_LONG: Final = re.compile(r"[A-Za-z0-9_.+/=:@~%?&-]{20,}")
_ORDINARY: Final = re.compile(r"[a-z]{3}_[0-9a-z]{26}|\d{4}-\d\d-\d\dT[\d:.]{8,15}Z")
# A text without any of these holds no place and no private key.
_SIGN: Final = re.compile(
    r"arn:aws|://|PRIVATE KEY|amazonaws|:\\|\.(?:aws|py|so|ya?ml|env|pem|key)"
    r"|/(?:var|opt|tmp|home|root|usr|etc|mnt|srv|app|private|Users|Library|proc|dev)/"
)


def redact(text: str) -> str:
    """``text`` without credentials, ARNs, URLs, hosts of AWS, paths of files, and names of what the deployment made."""
    text = redact_environment(text)
    if not _is_suspect(text):
        return text
    for pattern in (PRIVATE_KEY_LINES, LOGIN, CREDENTIAL, *_PLACES):
        text = pattern.sub(_GONE, text)
    return text


def redact_environment(text: str) -> str:
    """``text`` without this process's credentials and the names of what the deployment made."""
    for value in _values():
        text = text.replace(value, _GONE)
    return text


def redact_json(value: Json, hide: Callable[[str], str] = redact) -> Json:
    """The same for every text in ``value``, names of members included."""
    match value:
        case str():
            return hide(value)
        case list():
            return [redact_json(part, hide) for part in value]
        case dict():
            return redact_members(value, hide)
        case _:
            return value


def redact_members(value: Mapping[str, Json], hide: Callable[[str], str] = redact) -> dict[str, Json]:
    """The same for an object."""
    return {hide(name): redact_json(part, hide) for name, part in value.items()}


def needs_no_redaction(text: str) -> bool:
    """Whether ``redact`` would change nothing; quick where that is so."""
    return not (_is_suspect(text) or any(value in text for value in _values()))


def _is_suspect(text: str) -> bool:
    if _SIGN.search(text):
        return True
    return any(not _ORDINARY.fullmatch(run) and _holds_credential(run) for run in _LONG.findall(text))


@lru_cache(maxsize=512)
def _holds_credential(run: str) -> bool:
    """Lines of the log say the same names and routes time and again."""
    return CREDENTIAL.search(run) is not None


@cache
def _values() -> Sequence[str]:
    """What the environment of this process says of its credentials and of what the deployment has made."""
    found = map(os.environ.get, (*_NAMES, *_CREDENTIALS))
    return sorted((value for value in found if value and len(value) >= _SHORTEST), key=len, reverse=True)


def reload_environment() -> None:
    """The environment has changed."""
    _values.cache_clear()
