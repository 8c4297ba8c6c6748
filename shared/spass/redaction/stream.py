"""Redact a text that arrives in pieces.

A secret is always inside one run: a series of characters that secrets consist of (``detector.runs``). So the redactor holds the
last run until it ends, up to ``MAX_HELD_CHARACTERS``, and then redacts it as a whole. The result does not depend on where the
text is cut. Two additions:

- The first ``EARLY_CHARACTERS`` letters of a run leave immediately, so that a client sees the first word early.
- The lines of a private key are separate runs; ``_PrivateKeyLines`` remembers that a key has begun.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from spass.redaction.detector import (
    CONTEXT_CHARACTERS,
    EARLY_CHARACTERS,
    LAST_BREAK,
    MIN_SECRET_LENGTH,
    SecretSet,
    SecretSpan,
    early_length,
    ends_with_label,
    first_run_length,
    runs,
)
from spass.redaction.patterns import PRIVATE_KEY
from spass.redaction.text import REDACTED

MAX_HELD_CHARACTERS: Final = 1024
"""Characters of a run that are held. A longer run is redacted in overlapping parts of this length."""

_OVERLAP: Final = 256  # characters
_LONGEST_BROKEN_WORD: Final = 12  # characters
_ESCAPE: Final = re.compile(r"\\(?:/|u[0-9a-fA-F]{4}|(?!u[0-9a-fA-F]{0,3}\Z)(.))", re.DOTALL)
_LONGEST_ESCAPE: Final = 6
_REST_OF_SECRET: Final = re.compile(r"[A-Za-z0-9+/=_.%~-]*")
_KEY_LINE: Final = re.compile(r"(?:[A-Za-z0-9+/=]|\\/|\\u00[2-7][0-9a-fA-F])+")
_KEY_LINE_LENGTH: Final = 16  # characters; only the last line of a key is shorter
_WORDS_BEFORE_KEY_LINES: Final = 12  # words of a private key's headers
_WORDS_BETWEEN_KEY_LINES: Final = 2


def redact_secrets(secrets: SecretSet, text: str) -> str:
    """Return ``text`` as a ``StreamRedactor`` redacts it."""
    stream = StreamRedactor(secrets)
    return stream.feed(text) + stream.flush()


class _Match(NamedTuple):
    """A secret, and the start of its run. ``early`` is True if the first characters of that run may have left already."""

    span: SecretSpan
    run: int
    early: bool


class StreamRedactor:
    """Redact one text that arrives in pieces: replace each secret by ``REDACTED``."""

    __slots__ = ("_before", "_continued", "_key_lines", "_secrets", "_sent", "_skipping", "_tail")

    def __init__(self, secrets: SecretSet) -> None:
        self._secrets = secrets
        self._key_lines = _PrivateKeyLines()
        self._before = ""  # the last characters before the tail, as context
        self._tail = ""  # the run that has not ended
        self._sent = 0  # characters of the tail that have left already
        self._continued = False  # the tail's run began before the tail
        self._skipping = False  # the next characters belong to a secret that was replaced

    def feed(self, piece: str) -> str:
        """Return what may leave after ``piece`` has arrived."""
        if len(piece) <= MAX_HELD_CHARACTERS:
            return self._feed(piece)
        return "".join(self._feed(piece[at : at + MAX_HELD_CHARACTERS]) for at in range(0, len(piece), MAX_HELD_CHARACTERS))

    def flush(self, *, breaks_off: bool = False) -> str:
        """Return the held text when the text has ended. If it ``breaks_off``, leave out a long run: it may be the beginning of a
        secret, which cannot be recognised."""
        if breaks_off and (len(self._tail) > _LONGEST_BROKEN_WORD or self._continued or self._key_lines.expected):
            self._tail = ""
        return self._release(len(self._tail), len(self._tail))[0] if self._tail else ""

    def _feed(self, piece: str) -> str:
        if self._skipping:
            piece = self._skip_rest_of_secret(piece)
        known = len(self._tail)
        self._tail += piece
        out, end = "", self._end_of_runs(known)
        while len(self._tail) >= MAX_HELD_CHARACTERS and (end == 0 or first_run_length(self._tail) >= MAX_HELD_CHARACTERS):
            out += self._release_part()
            end = self._end_of_runs(0)
        if end:
            out += self._release(end, end)[0]
        return out + self._release_early() if end or known < EARLY_CHARACTERS else out

    def _end_of_runs(self, known: int) -> int:
        """Return the end of the last complete run in the tail. The first ``known`` characters of the tail contain no such end."""
        tail = self._tail
        match = LAST_BREAK.match(tail, known)
        end = match.end() if match else 0
        if "\\" in tail:
            escape = tail.rfind("\\", max(0, known - _LONGEST_ESCAPE), known)
            for match in _ESCAPE.finditer(tail, max(end, escape if escape >= 0 else known)):
                if match[1]:
                    end = match.end()
        return end

    def _release(self, end: int, border: int) -> tuple[str, int]:
        """Redact ``end`` characters of the tail, and drop them up to ``border`` or the end of the last secret that starts before.
        Return the text that leaves, and the position in the tail where that secret ended."""
        text = self._tail[:end]
        out, at = "", self._sent
        for (start, stop), run, early in self._matches(text):
            if start >= border:
                break
            # Always send the early characters: whether they were sent early depends on where the text was cut.
            visible_end = max(start, run + early_length(text[run : run + EARLY_CHARACTERS])) if early else start
            out, at = out + text[at:visible_end] + REDACTED, stop
        cut = max(border, at)
        self._before = (self._before + self._tail[:cut])[-CONTEXT_CHARACTERS:]
        self._tail = self._tail[cut:]
        self._sent = 0
        self._continued = False
        return out + text[at:cut], at

    def _release_part(self) -> str:
        """Redact the first ``MAX_HELD_CHARACTERS`` of a run that does not end."""
        out, end_of_secret = self._release(MAX_HELD_CHARACTERS, MAX_HELD_CHARACTERS - _OVERLAP)
        self._continued = True
        if end_of_secret == MAX_HELD_CHARACTERS:
            self._skipping = True
            self._tail = self._skip_rest_of_secret(self._tail)
        return out

    def _release_early(self) -> str:
        """Return the first characters of the tail, unless they have left already or may belong to a secret."""
        if not self._tail:
            return ""
        count = early_length(self._tail)
        if count <= self._sent or self._continued or self._key_lines.expected or ends_with_label(self._before):
            return ""
        first = self._tail[self._sent : count]
        self._sent = count
        return first

    def _skip_rest_of_secret(self, text: str) -> str:
        match = _REST_OF_SECRET.match(text)
        end = match.end() if match else 0
        self._skipping = end == len(text)
        return text[end:]

    def _matches(self, text: str) -> Iterator[_Match]:
        """Yield the secrets in ``text``, which consists of whole runs."""
        if len(text) < MIN_SECRET_LENGTH and not self._key_lines.expected:
            return
        near_key = self._key_lines.expected or "-----" in text
        headers = self._ends_of_key_headers(text) if near_key else []
        for start, end in runs(text, 1 if near_key else MIN_SECRET_LENGTH):
            run, in_key = text[start:end], self._key_lines.expected
            continued = self._continued and start == 0
            before = (self._before + text[max(0, start - CONTEXT_CHARACTERS) : start])[-CONTEXT_CHARACTERS:]
            spans = self._secrets.spans(run, before, self._before[-1:] if continued else "")
            if near_key and (line := self._key_lines.find(run, [at - start for at in headers if start < at <= end])):
                spans = [line]
            if spans:
                early = not (continued or in_key or ends_with_label(before))
                for span in spans:
                    yield _Match(SecretSpan(start + span.start, start + span.end), start, early)

    def _ends_of_key_headers(self, text: str) -> list[int]:
        known = len(self._before)
        return [match.end() - known for match in PRIVATE_KEY.finditer(self._before + text) if match.end() > known]


class _PrivateKeyLines:
    """Find the lines of a private key after its header, run by run."""

    __slots__ = ("_in_key", "_words_left")

    def __init__(self) -> None:
        self._words_left = 0  # other words that may still come before the next line of the key
        self._in_key = False  # True after the first line of the key

    @property
    def expected(self) -> bool:
        return self._words_left > 0

    def find(self, run: str, headers: list[int]) -> SecretSpan | None:
        """Return the line of a private key in ``run``. ``headers`` are the positions in the run where a key's header ends."""
        at = headers[-1] if headers else 0
        if headers:
            self._words_left, self._in_key = _WORDS_BEFORE_KEY_LINES, False
        if not self._words_left or at == len(run):
            return None
        match = _KEY_LINE.match(run, at)
        length = match.end() - at if match else 0
        is_line = length >= _KEY_LINE_LENGTH or (self._in_key and length > 0 and length % 4 == 0)
        if is_line:
            self._words_left, self._in_key = _WORDS_BETWEEN_KEY_LINES, True
        else:
            self._words_left -= 1
        if run.startswith("-----", at + length):
            self._words_left = 0
        return SecretSpan(at, at + length) if is_line else None
