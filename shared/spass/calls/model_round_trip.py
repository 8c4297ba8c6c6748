"""Rewrite a text so that a model can repeat it: neither the input defence nor the redaction of answers changes the result."""

import re
from typing import Final

from spass.calls.text_cleaning import clean_text
from spass.redaction.detector import SecretSet
from spass.redaction.patterns import PRIVATE_KEY
from spass.redaction.stream import redact_secrets
from spass.redaction.text import REDACTED

_MAX_PASSES: Final = 4
_BEGIN: Final = "-----BEGIN"


def model_round_trip(text: str, secrets: SecretSet) -> str:
    """Return ``text`` as a model reads it in a prompt and as its repetition arrives, with the same number of line breaks.

    The redaction of an answer takes words after the header of a private key for the key, so the result has no such header. So a
    part of the result arrives unchanged too, in whatever order a model repeats its lines.
    """
    for _ in range(_MAX_PASSES):
        before, text = text, _rewrite(text, secrets)
        if text == before:
            return text
    # Each pass can uncover a secret in what the pass before left. Drop the lines for which this does not end soon.
    after = _rewrite(text, secrets).split("\n")
    return "\n".join(one if one == two else REDACTED for one, two in zip(text.split("\n"), after, strict=True))


def _rewrite(text: str, secrets: SecretSet) -> str:
    return PRIVATE_KEY.sub(_break_header, redact_secrets(secrets, clean_text(text)))


def _break_header(header: re.Match[str]) -> str:
    return header.group().replace(_BEGIN, _BEGIN + REDACTED)
