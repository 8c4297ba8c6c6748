"""Find secrets in a run of characters: secrets that this process knows, and credential formats."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

from spass.redaction.patterns import AWS_SECRET, AWS_SECRET_NAME, BEARER, BEARER_TOKEN, CREDENTIAL, LOGIN

MIN_SECRET_LENGTH: Final = 8
"""Characters. A shorter text is not a secret."""
CONTEXT_CHARACTERS: Final = 64
"""Characters before a run that are searched for a label."""
EARLY_CHARACTERS: Final = 4
"""Characters that may leave before the end of their run is known. In most credentials they only identify the issuer."""

_MIN_WORD_LENGTH: Final = 12  # characters; a shorter value is a secret only if it holds a digit: "stand-in" is a word
_PIECE: Final = 48  # characters
_RUN_CHARACTERS: Final = r"!#$%&*+\-./0-9:=?@A-Z^_a-z~"
_NOT_IN_A_RUN: Final = re.compile(rf"[^{_RUN_CHARACTERS}]+")
# A token may be part of a URL, follow a name, or end a sentence.
_WORDS: Final = tuple(map(re.compile, (r"[A-Za-z0-9_-]{8,}", r"[A-Za-z0-9._~+/-]{8,}=*", r"[^=:&?#@]{8,}=*", r".{8,}")))
_PUNCTUATION: Final = "!#$%&*+-./:=?@^_~"

_LABELS: Final = (
    (("secret", "aws", "akia", "asia"), AWS_SECRET_NAME, AWS_SECRET),
    (("bearer",), BEARER, BEARER_TOKEN),
)
"""For each kind: words of which its label contains one, the pattern of the label, and the pattern of the credential after it."""
_MIN_LABELLED_LENGTH: Final = 20

# A run: visible ASCII without quotes, brackets, commas, semicolons, bars and backslashes.
_RUN: Final = re.compile(rf"[{_RUN_CHARACTERS}]+")
# A run in JSON: the escapes \\/ and \\u0073 belong to it; other escapes, such as \\n, end it.
_ESCAPED_RUN: Final = rf"(?:[{_RUN_CHARACTERS}]|\\/|\\u[0-9a-fA-F]{{4}})"
_FIRST_RUN: Final = re.compile(rf"{_ESCAPED_RUN}*")
_RUN_OR_ESCAPE: Final = re.compile(rf"\\(?!/|u[0-9a-fA-F]{{4}}).?|(?P<run>{_ESCAPED_RUN}+)", re.DOTALL)
_LONG_RUN: Final = re.compile(rf"[{_RUN_CHARACTERS}]{{{MIN_SECRET_LENGTH},}}")
LAST_BREAK: Final = re.compile(rf".*[^{_RUN_CHARACTERS}\\]", re.DOTALL)
"""Matches up to the last character that ends a run."""


class SecretSpan(NamedTuple):
    start: int
    end: int


def first_run_length(text: str) -> int:
    match = _FIRST_RUN.match(text)
    return match.end() if match else 0


def runs(text: str, shortest: int) -> Iterator[SecretSpan]:
    """Yield the runs in ``text`` of at least ``shortest`` characters."""
    if "\\" in text:
        matches = (match.span("run") for match in _RUN_OR_ESCAPE.finditer(text) if match["run"])
        return (SecretSpan(start, end) for start, end in matches if end - start >= shortest)
    pattern = _LONG_RUN if shortest == MIN_SECRET_LENGTH else _RUN
    return (SecretSpan(*match.span()) for match in pattern.finditer(text))


class SecretSet:
    """Secrets to find: ``values``, and the tokens whose SHA-256, in hexadecimal, is in ``token_sha256``."""

    def __init__(self, values: Iterable[str], token_sha256: Iterable[str]) -> None:
        self._pieces = sorted(set(_pieces(values)), key=len)
        self._digests = frozenset(map(bytes.fromhex, token_sha256))

    def spans(self, run: str, before: str, lead: str = "") -> list[SecretSpan]:
        """Return the spans of secrets in a whole ``run``: sorted, without overlaps and not adjacent.

        ``before`` is the text before the run. If the beginning of the run was searched before, ``lead`` is its last character.
        """
        if len(run) < MIN_SECRET_LENGTH:
            return []
        if "\\" in run:
            plain = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), run.replace("\\/", "/"))
            return [SecretSpan(0, len(run))] if self._find(plain, before, lead) else []
        return _merge_spans(self._find(run, before, lead))

    def _find(self, run: str, before: str, lead: str) -> list[SecretSpan]:
        secrets = [SecretSpan(*match.span()) for match in CREDENTIAL.finditer(lead + run, len(lead))]
        if lead and secrets:
            secrets = [SecretSpan(start - len(lead), end - len(lead)) for start, end in secrets]
        if "://" in run:
            secrets += [SecretSpan(*match.span()) for match in LOGIN.finditer(run)]
        if len(run) >= _MIN_LABELLED_LENGTH:
            secrets += _labelled_credentials(run, before)
        for piece in self._pieces:
            if len(piece) > len(run):
                break
            at = run.find(piece)
            while at >= 0:
                secrets.append(SecretSpan(at, at + len(piece)))
                at = run.find(piece, at + len(piece))
        if self._digests:
            secrets += [span for span in set(_words(run)) if _sha256(run[span.start : span.end]) in self._digests]
        return secrets


def early_length(run: str) -> int:
    """Return how many of the first characters of ``run`` may leave early: letters and digits. It never shrinks as a run grows."""
    count = 0
    while count < min(EARLY_CHARACTERS, len(run)) and run[count].isalnum():
        count += 1
    return count


def ends_with_label(before: str) -> bool:
    """Return True if ``before`` ends with a label of ``_LABELS``, after which a credential may follow."""
    lower = before.lower()
    for words, name, _ in _LABELS:
        for word in words:
            if word in lower:
                if name.search(before):
                    return True
                break
    return False


def _labelled_credentials(run: str, before: str) -> Iterator[SecretSpan]:
    """Yield the credentials in ``run`` that follow a label."""
    context = (before + run).lower()
    for words, name, value in _LABELS:
        if any(word in context for word in words):
            matches = value.finditer(run)
            yield from (
                SecretSpan(*match.span())
                for match in matches
                if name.search((before + run[: match.start()])[-CONTEXT_CHARACTERS:])
            )


def _pieces(values: Iterable[str]) -> Iterator[str]:
    """Yield the texts to search for. A long run is searched in parts, so a long value is split into pieces."""
    for value in values:
        if len(value) < (MIN_SECRET_LENGTH if any(map(str.isdigit, value)) else _MIN_WORD_LENGTH):
            continue
        for form in {value, quote(value, safe="")}:
            for part in _NOT_IN_A_RUN.split(form):
                starts = range(0, max(1, len(part) - _PIECE + 1), _PIECE) if len(part) > _PIECE else (0,)
                pieces = [part[start : start + _PIECE] for start in starts] + [part[-_PIECE:]]
                yield from (piece for piece in pieces if len(piece) >= MIN_SECRET_LENGTH)


def _words(run: str) -> Iterator[SecretSpan]:
    """Yield the parts of ``run`` that may be a token."""
    if run.isalnum():
        yield SecretSpan(0, len(run))
        return
    start, end = len(run) - len(run.lstrip(_PUNCTUATION)), len(run.rstrip(_PUNCTUATION))
    if end - start >= MIN_SECRET_LENGTH:
        yield SecretSpan(start, end)
    for words in _WORDS:
        yield from (SecretSpan(*match.span()) for match in words.finditer(run))


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _merge_spans(spans: list[SecretSpan]) -> list[SecretSpan]:
    """Merge spans that overlap or touch. The result covers the same characters."""
    if len(spans) < 2:
        return spans
    merged: list[SecretSpan] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = SecretSpan(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged
