"""Redact texts that leave in an error or in the log."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

from spass.core.messages import Json
from spass.redaction.patterns import CREDENTIAL, LOGIN, PLACES, PRIVATE_KEY_LINES, PROVIDER_TEXT

REDACTED: Final = "[…]"
"""Replaces a secret."""
MAX_PROVIDER_CHARACTERS: Final = 500
CREDENTIAL_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_DEPLOYMENT_VARIABLES: Final = (
    "SPASS_TABLE",
    "SPASS_BUCKET",
    "SPASS_QUEUE",
    "SPASS_COMPACTION_QUEUE",
    "SPASS_COMPACTION_MACHINE",
    "SPASS_RUNS_QUEUE",
    "SPASS_RUNS_QUEUE_ARN",
    "SPASS_SCHEDULE_GROUP",
    "SPASS_SCHEDULE_ROLE",
)
_MIN_VALUE_LENGTH: Final = 8  # characters of an environment variable's value
_LONG_SECRET: Final = 12  # characters
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f\x80-\x9f]+")
_RUN_CHARACTERS: Final = r"[A-Za-z0-9_.+/=:@~%?&-]"
_LONG_RUN: Final = re.compile(rf"{_RUN_CHARACTERS}{{20,}}")
# The time to search a run for credentials grows with the square of its length, so a longer run is redacted as a whole.
_MAX_RUN: Final = 2048  # characters
_OVERLONG_RUN: Final = re.compile(rf"{_RUN_CHARACTERS}{{{_MAX_RUN + 1},}}")
_ID_OR_TIME: Final = re.compile(r"[a-z]{3}_[0-9a-z]{26}|\d{4}-\d\d-\d\dT[\d:.]{8,15}Z")
# A text without any of these holds neither a place nor a private key.
_MARKER: Final = re.compile(
    r"arn:aws|://|PRIVATE KEY|amazonaws|:\\|\.(?:aws|py|so|ya?ml|env|pem|key)"
    r"|/(?:var|opt|tmp|home|root|usr|etc|mnt|srv|app|private|Users|Library|proc|dev)/"
)


def redact(text: str) -> str:
    """Return ``text`` without credentials, ARNs, URLs, AWS hosts, file paths and names of the deployment's resources."""
    text = redact_environment(text)
    if not _is_suspect(text):
        return text
    for pattern in (_OVERLONG_RUN, PRIVATE_KEY_LINES, LOGIN, CREDENTIAL, *PLACES):
        text = pattern.sub(REDACTED, text)
    return text


def redact_provider_text(text: str, *, secrets: Sequence[str] = ()) -> str:
    """Return a provider's message on one line of at most 500 characters, without keys, URLs, hosts, addresses, paths, ARNs and
    ``secrets``."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        # Do not replace a short secret inside a word: a host may be called "gpu".
        literal = re.escape(secret)
        text = re.sub(literal if len(secret) >= _LONG_SECRET else rf"(?<!\w){literal}(?!\w)", REDACTED, text, flags=re.IGNORECASE)
    text = redact_environment(text[: MAX_PROVIDER_CHARACTERS * 4])
    for pattern in PROVIDER_TEXT:
        text = re.sub(pattern, REDACTED, text)
    text = _CONTROLS.sub(" ", text).encode(errors="replace").decode().strip()
    return text if len(text) <= MAX_PROVIDER_CHARACTERS else text[: MAX_PROVIDER_CHARACTERS - 1] + "…"


def redact_environment(text: str) -> str:
    """Return ``text`` without this process's credentials and the names of the deployment's resources."""
    for value in _environment_values():
        text = text.replace(value, REDACTED)
    return text


def redact_json(value: Json, redact: Callable[[str], str] = redact) -> Json:
    """Return ``value`` with every text in it redacted, including the names of members."""
    match value:
        case str():
            return redact(value)
        case list():
            return [redact_json(part, redact) for part in value]
        case dict():
            return redact_members(value, redact)
        case _:
            return value


def redact_members(value: Mapping[str, Json], redact: Callable[[str], str] = redact) -> dict[str, Json]:
    """Return the object ``value`` redacted as by ``redact_json``."""
    return {redact(name): redact_json(part, redact) for name, part in value.items()}


def needs_no_redaction(text: str) -> bool:
    """Return True if ``redact`` would not change ``text``. It is fast, because the log calls it for every line."""
    return not (_is_suspect(text) or any(value in text for value in _environment_values()))


def reload_environment() -> None:
    """Discard the cached environment variables. The next use reads them again."""
    _environment_values.cache_clear()


def _is_suspect(text: str) -> bool:
    if _MARKER.search(text):
        return True
    runs: list[str] = _LONG_RUN.findall(text)
    return any(len(run) > _MAX_RUN or (not _ID_OR_TIME.fullmatch(run) and _holds_credential(run)) for run in runs)


@lru_cache(maxsize=512)  # lines of the log repeat the same names and routes
def _holds_credential(run: str) -> bool:
    return CREDENTIAL.search(run) is not None


@cache
def _environment_values() -> Sequence[str]:
    values = map(os.environ.get, (*_DEPLOYMENT_VARIABLES, *CREDENTIAL_VARIABLES))
    return sorted((value for value in values if value and len(value) >= _MIN_VALUE_LENGTH), key=len, reverse=True)
