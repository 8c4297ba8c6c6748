"""Leak scrubbing of what a model says, whole or in pieces.

What an answer loses is decided by runs of characters (``secrets.RUN``), each when it is whole. So it does not depend on where the
provider cuts its answer, and what is held back is never more than the rest of one run.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Final, NamedTuple

from spass.core.errors import SpassError
from spass.llm.backends import key_variable
from spass.llm.types import ChatDelta, ToolCallDelta
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
from spass.redaction.provider_text import REDACTED, redact_provider_text
from spass.redaction.text import redact
from spass.tenancy.config import GatewayConfig

MAX_HELD_CHARACTERS: Final = 1024
"""Characters of a run that are held back; of a longer one the parts are looked at, overlapping."""

_OVERLAP: Final = 256
_CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ESCAPE: Final = re.compile(r"\\(?:/|u[0-9a-fA-F]{4}|(?!u[0-9a-fA-F]{0,3}\Z)(.))", re.DOTALL)
_LONGEST_ESCAPE: Final = 6
_REST_OF_SECRET: Final = re.compile(r"[A-Za-z0-9+/=_.%~-]*")
_KEY_LINE: Final = re.compile(r"(?:[A-Za-z0-9+/=]|\\/|\\u00[2-7][0-9a-fA-F])+")
_KEY_LINE_LENGTH: Final = 16  # a shorter one is the last
_BEFORE_KEY_LINES: Final = 12  # words of a private key's headers
_BETWEEN_KEY_LINES: Final = 2


class Redactor:
    """What no answer may hold. One for the process; ``keys`` gives the provider keys in use."""

    def __init__(self, config: GatewayConfig, keys: Callable[[], Collection[str]]) -> None:
        self._sha256 = [token.sha256 for tenant in config.tenants for token in tenant.tokens]
        self._keys = keys
        variables = filter(None, map(key_variable, config.llm.backends))
        self._variables = tuple(dict.fromkeys((*_CREDENTIALS, *variables)))
        self._values: tuple[str, ...] = ()
        self._secrets = SecretSet.of((), self._sha256)

    def answer_redactor(self) -> "AnswerRedactor":
        """For one answer."""
        return AnswerRedactor(self._known)

    def redact_error(self, error: SpassError) -> SpassError:
        """The same error without secrets, hosts, paths and ARNs in its words: the last gate for whatever comes from a
        provider."""
        message = redact_provider_text(_redact_whole(self._known(), error.message), secrets=self._values)
        return type(error)(message, param=error.param, details=error.details, retry_after=error.retry_after)

    def hide(self, text: str) -> str:
        """``text`` of an error without what ``aws.hidden`` knows, nor a token or key that its caller sent."""
        return redact(_redact_whole(self._known(), text))

    def _known(self) -> SecretSet:
        environment = filter(None, map(os.environ.get, self._variables))
        values = (*self._keys(), *environment)
        if values != self._values:
            self._secrets, self._values = SecretSet.of(values, self._sha256), values
        return self._secrets


class AnswerRedactor:
    """Takes the pieces of one answer and gives them on without secrets, also where one is cut in two. Each is replaced by
    ``[…]``; however an answer is cut, the pieces that are given on make up the same."""

    def __init__(self, known: Callable[[], SecretSet]) -> None:
        self._known = known
        self._calls: dict[int, _Text] = {}

    @cached_property
    def _secrets(self) -> SecretSet:
        """Asked for when the answer begins: the key that it was asked with may have come into use just before."""
        return self._known()

    @cached_property
    def _content(self) -> "_Text":
        return _Text(self._secrets)

    @cached_property
    def _refusal(self) -> "_Text":
        return _Text(self._secrets)

    def passed(self, delta: ChatDelta) -> ChatDelta:
        """What may be passed on now; a piece without text where that is nothing."""
        content = self._content.passed(delta.content) if delta.content else ""
        refusal = self._refusal.passed(delta.refusal) if delta.refusal else ""
        calls = tuple(filter(_has_content, map(self._piece, delta.tool_calls))) if delta.tool_calls else ()
        return ChatDelta(content, calls, delta.finish_reason, delta.usage, delta.cost_usd, refusal)

    def rest(self) -> ChatDelta:
        """What was held back, when the answer has ended."""
        held = ((index, text.rest()) for index, text in self._calls.items())
        calls = tuple(ToolCallDelta(index, arguments=arguments) for index, arguments in held if arguments)
        return ChatDelta(self._content.rest(), calls, refusal=self._refusal.rest())

    def _piece(self, piece: ToolCallDelta) -> ToolCallDelta:
        arguments = self._calls.setdefault(piece.index, _Text(self._secrets)).passed(piece.arguments) if piece.arguments else ""
        identity = _redact_whole(self._secrets, piece.id) if piece.id else piece.id
        name = _redact_whole(self._secrets, piece.name) if piece.name else piece.name
        return ToolCallDelta(piece.index, identity, name, arguments)


def _has_content(piece: ToolCallDelta) -> bool:
    return bool(piece.arguments) or piece.id is not None or piece.name is not None


def _redact_whole(secrets: SecretSet, text: str) -> str:
    whole = _Text(secrets)
    return whole.passed(text) + whole.rest()


class _Found(NamedTuple):
    """A secret in a text, and where the run begins that it is in; ``quiet``: nothing of that run was given on early."""

    span: SecretSpan
    run: int
    quiet: bool


class _Text:
    """One of the texts of an answer."""

    __slots__ = ("_before", "_continued", "_given", "_in_key", "_key_words", "_secrets", "_swallowing", "_tail")

    def __init__(self, secrets: SecretSet) -> None:
        self._secrets = secrets
        self._before = ""  # the end of what has been looked through
        self._tail = ""  # the run that has not ended
        self._given = 0  # its characters that have been given on
        self._continued = False  # its beginning has been looked through already
        self._swallowing = False  # it goes on with the rest of a secret
        self._key_words = 0  # so many more words may stand before the next line of a private key
        self._in_key = False  # a line of it has been seen

    def passed(self, text: str) -> str:
        """What may be given on when ``text`` has come."""
        if len(text) <= MAX_HELD_CHARACTERS:
            return self._taken(text)
        return "".join(self._taken(text[at : at + MAX_HELD_CHARACTERS]) for at in range(0, len(text), MAX_HELD_CHARACTERS))

    def rest(self) -> str:
        return self._settled(len(self._tail)) if self._tail else ""

    def _taken(self, text: str) -> str:
        """The same for a text of which only the first run can be overlong."""
        if self._swallowing:
            text = self._rest_of_secret(text)
        known = len(self._tail)
        self._tail += text
        out, end = "", self._end_of_runs(known)
        while len(self._tail) >= MAX_HELD_CHARACTERS and (end == 0 or first_run_length(self._tail) >= MAX_HELD_CHARACTERS):
            out += self._beginning()
            end = self._end_of_runs(0)
        if end:
            out += self._settled(end)
        return out + self._early() if end or known < EARLY_CHARACTERS else out

    def _end_of_runs(self, known: int) -> int:
        """How much of the tail belongs to runs that have ended; none of it did when it had ``known`` characters."""
        tail = self._tail
        match = LAST_BREAK.match(tail, known)
        end = match.end() if match else 0
        if "\\" in tail:
            escape = tail.rfind("\\", max(0, known - _LONGEST_ESCAPE), known)
            for match in _ESCAPE.finditer(tail, max(end, escape if escape >= 0 else known)):
                if match[1]:
                    end = match.end()
        return end

    def _settled(self, end: int) -> str:
        """The tail up to ``end``, where runs end, as it is given on."""
        text = self._tail[:end]
        out, at = "", self._given
        for (start, stop), run, quiet in self._found(text) if end >= MIN_SECRET_LENGTH or self._key_words else ():
            out, at = out + text[at : self._shown(text, start, run, quiet=quiet)] + REDACTED, stop
        self._look_past(end)
        return out + text[at:]

    def _beginning(self) -> str:
        """The beginning of a run that does not end, as it is given on."""
        part = self._tail[:MAX_HELD_CHARACTERS]
        border = MAX_HELD_CHARACTERS - _OVERLAP
        out, at = "", self._given
        for (start, stop), run, quiet in self._found(part):
            if start >= border:  # the next part has it whole, or more of it
                break
            out, at = out + part[at : self._shown(part, start, run, quiet=quiet)] + REDACTED, stop
        end = max(border, at)
        out += part[at:end]
        self._look_past(end)
        self._continued = True
        if at == MAX_HELD_CHARACTERS:
            self._swallowing = True
            self._tail = self._rest_of_secret(self._tail)
        return out

    def _shown(self, text: str, start: int, run: int, *, quiet: bool) -> int:
        """Up to where ``text`` is given on before a secret at ``start``: what may have been given on early always is."""
        return start if quiet else max(start, run + early_length(text[run : run + EARLY_CHARACTERS]))

    def _look_past(self, end: int) -> None:
        self._before = (self._before + self._tail[:end])[-CONTEXT_CHARACTERS:]
        self._tail = self._tail[end:]
        self._given = 0
        self._continued = False

    def _rest_of_secret(self, text: str) -> str:
        """``text`` without what belongs to the secret before it."""
        match = _REST_OF_SECRET.match(text)
        end = match.end() if match else 0
        self._swallowing = end == len(text)
        return text[end:]

    def _early(self) -> str:
        """The first characters of the tail, unless they have been given on or it is known what kind of run it is."""
        if not self._tail:
            return ""
        count = early_length(self._tail)
        if count <= self._given or self._is_quiet(self._before):
            return ""
        first = self._tail[self._given : count]
        self._given = count
        return first

    def _is_quiet(self, before: str) -> bool:
        return self._continued or self._key_words > 0 or ends_with_label(before)

    def _found(self, text: str) -> Iterator[_Found]:
        """The secrets in ``text``, which is runs that have ended."""
        near_key = self._key_words > 0 or "-----" in text
        ends = self._ends_of_key_headers(text) if near_key else []
        for start, end in runs(text, 1 if near_key else MIN_SECRET_LENGTH):
            run, in_key = text[start:end], self._key_words > 0
            continued = self._continued and start == 0
            before = (self._before + text[max(0, start - CONTEXT_CHARACTERS) : start])[-CONTEXT_CHARACTERS:]
            spans = self._secrets.spans(run, before, self._before[-1:] if continued else "")
            if near_key and (line := self._key_line(run, [one - start for one in ends if start < one <= end])):
                spans = [line]
            if spans:
                quiet = continued or in_key or ends_with_label(before)
                for span in spans:
                    yield _Found(SecretSpan(start + span.start, start + span.end), start, quiet)

    def _ends_of_key_headers(self, text: str) -> list[int]:
        known = len(self._before)
        return [match.end() - known for match in PRIVATE_KEY.finditer(self._before + text) if match.end() > known]

    def _key_line(self, run: str, headers: list[int]) -> SecretSpan | None:
        """The line of a private key that ``run`` holds, after the end of its header if that is in ``headers``."""
        at = headers[-1] if headers else 0
        if headers:
            self._key_words, self._in_key = _BEFORE_KEY_LINES, False
        if not self._key_words or at == len(run):
            return None
        match = _KEY_LINE.match(run, at)
        length = match.end() - at if match else 0
        is_line = length >= _KEY_LINE_LENGTH or (self._in_key and length > 0 and length % 4 == 0)
        if is_line:
            self._key_words, self._in_key = _BETWEEN_KEY_LINES, True
        else:
            self._key_words -= 1
        if run.startswith("-----", at + length):
            self._key_words = 0
        return SecretSpan(at, at + length) if is_line else None
