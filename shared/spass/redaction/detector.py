"""Where in a text secrets stand: those that this process knows, and what looks like nothing but a credential."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, Self
from urllib.parse import quote

from spass.redaction.patterns import AWS_SECRET, AWS_SECRET_NAME, BEARER, BEARER_TOKEN, CREDENTIAL, LOGIN

MIN_SECRET_LENGTH: Final = 8
"""Characters. Nothing shorter is taken for a secret."""
CONTEXT_CHARACTERS: Final = 64
"""Characters before a run that what it is may depend on."""
EARLY_CHARACTERS: Final = 4
"""Characters of a run that may be given on before it is known how it goes on. They say of most credentials only what they are."""

_MIN_WORD_LENGTH: Final = 12  # characters: a shorter value is a secret only if it holds a digit; "stand-in" is a word
_PIECE: Final = 48
_RUN_CHARACTERS: Final = r"!#$%&*+\-./0-9:=?@A-Z^_a-z~"
_NOT_IN_A_RUN: Final = re.compile(rf"[^{_RUN_CHARACTERS}]+")
# A token may stand in a URL, after a name, or in a sentence.
_WORDS: Final = tuple(map(re.compile, (r"[A-Za-z0-9_-]{8,}", r"[A-Za-z0-9._~+/-]{8,}=*", r"[^=:&?#@]{8,}=*", r".{8,}")))
_AROUND: Final = "!#$%&*+-./:=?@^_~"

_NAMED: Final = (
    (("secret", "aws", "akia", "asia"), AWS_SECRET_NAME, AWS_SECRET),
    (("bearer",), BEARER, BEARER_TOKEN),
)
"""Words of which one stands in what stands before a credential, that, and the credential."""
_SHORTEST_NAMED: Final = 20

# What a secret may be within: visible ASCII without quotes, brackets, commas, semicolons, bars and backslashes.
_RUN: Final = re.compile(rf"[{_RUN_CHARACTERS}]+")
# The same in JSON: \\/ and \\u0073 are characters of a run; other escapes, such as \\n, end it.
_ESCAPED_RUN: Final = rf"(?:[{_RUN_CHARACTERS}]|\\/|\\u[0-9a-fA-F]{{4}})"
_FIRST_RUN: Final = re.compile(rf"{_ESCAPED_RUN}*")
_RUN_OR_ESCAPE: Final = re.compile(rf"\\(?!/|u[0-9a-fA-F]{{4}}).?|(?P<run>{_ESCAPED_RUN}+)", re.DOTALL)
_LONG_RUN: Final = re.compile(rf"[{_RUN_CHARACTERS}]{{{MIN_SECRET_LENGTH},}}")
LAST_BREAK: Final = re.compile(rf".*[^{_RUN_CHARACTERS}\\]", re.DOTALL)
"""Up to the last character that surely ends a run."""


class SecretSpan(NamedTuple):
    start: int
    end: int


def first_run_length(text: str) -> int:
    """The length of the run that ``text`` begins with."""
    match = _FIRST_RUN.match(text)
    return match.end() if match else 0


def runs(text: str, shortest: int) -> Iterator[SecretSpan]:
    """The runs of ``text`` of ``shortest`` characters or more."""
    if "\\" in text:
        found = (match.span("run") for match in _RUN_OR_ESCAPE.finditer(text) if match["run"])
        return (SecretSpan(start, end) for start, end in found if end - start >= shortest)
    pattern = _LONG_RUN if shortest == MIN_SECRET_LENGTH else _RUN
    return (SecretSpan(*match.span()) for match in pattern.finditer(text))


class SecretSet:
    """What is known: ``values`` to the letter, tokens by their SHA-256 (``digests``)."""

    def __init__(self, values: Iterable[str], digests: Collection[bytes]) -> None:
        self._pieces = sorted(set(_pieces(values)), key=len)
        self._digests = frozenset(digests)

    @classmethod
    def of(cls, values: Iterable[str], sha256: Iterable[str]) -> Self:
        """``sha256`` in hexadecimal."""
        return cls(values, frozenset(map(bytes.fromhex, sha256)))

    def spans(self, run: str, before: str, lead: str = "") -> list[SecretSpan]:
        """The secrets in a whole ``run``, in order and apart. ``before`` is what stands before it, and ``lead`` the last
        character of the run's own beginning where that has been looked through already."""
        if len(run) < MIN_SECRET_LENGTH:
            return []
        if "\\" in run:
            plain = _unescaped(run)
            return [SecretSpan(0, len(run))] if self._found(plain, before, lead) else []
        return _merge_spans(self._found(run, before, lead))

    def _found(self, run: str, before: str, lead: str) -> list[SecretSpan]:
        found = [SecretSpan(*match.span()) for match in CREDENTIAL.finditer(lead + run, len(lead))]
        if lead and found:
            found = [SecretSpan(start - len(lead), end - len(lead)) for start, end in found]
        if "://" in run:
            found += [SecretSpan(*match.span()) for match in LOGIN.finditer(run)]
        if len(run) >= _SHORTEST_NAMED:
            found += _labelled_credentials(run, before)
        for piece in self._pieces:
            if len(piece) > len(run):
                break
            at = run.find(piece)
            while at >= 0:
                found.append(SecretSpan(at, at + len(piece)))
                at = run.find(piece, at + len(piece))
        if self._digests:
            found += [span for span in set(_words(run)) if _sha256(run[span.start : span.end]) in self._digests]
        return found


def early_length(run: str) -> int:
    """How many of the first characters of ``run`` may be given on early: letters and digits. Of a run that has grown it is never
    less."""
    count = 0
    while count < min(EARLY_CHARACTERS, len(run)) and run[count].isalnum():
        count += 1
    return count


def ends_with_label(before: str) -> bool:
    """Whether ``before`` ends with what stands before what looks like a credential only there."""
    lower = before.lower()
    return any(any(word in lower for word in words) and name.search(before) for words, name, _ in _NAMED)


def _labelled_credentials(run: str, before: str) -> Iterator[SecretSpan]:
    """The credentials in ``run`` that are told by what stands before them."""
    context = (before + run).lower()
    for words, name, value in _NAMED:
        if any(word in context for word in words):
            found = value.finditer(run)
            yield from (
                SecretSpan(*match.span()) for match in found if name.search((before + run[: match.start()])[-CONTEXT_CHARACTERS:])
            )


def _pieces(values: Iterable[str]) -> Iterator[str]:
    """What to look for. A run is looked through part by part if it is long, so a long value is looked for in pieces."""
    for value in values:
        if len(value) < (MIN_SECRET_LENGTH if any(map(str.isdigit, value)) else _MIN_WORD_LENGTH):
            continue
        for form in {value, quote(value, safe="")}:
            for part in _NOT_IN_A_RUN.split(form):
                starts = range(0, max(1, len(part) - _PIECE + 1), _PIECE) if len(part) > _PIECE else (0,)
                whole = [part[start : start + _PIECE] for start in starts] + [part[-_PIECE:]]
                yield from (piece for piece in whole if len(piece) >= MIN_SECRET_LENGTH)


def _words(run: str) -> Iterator[SecretSpan]:
    """What of ``run`` may be a token."""
    if run.isalnum():
        yield SecretSpan(0, len(run))
        return
    start, end = len(run) - len(run.lstrip(_AROUND)), len(run.rstrip(_AROUND))
    if end - start >= MIN_SECRET_LENGTH:
        yield SecretSpan(start, end)
    for words in _WORDS:
        yield from (SecretSpan(*match.span()) for match in words.finditer(run))


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _unescaped(run: str) -> str:
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), run.replace("\\/", "/"))


def _merge_spans(spans: list[SecretSpan]) -> list[SecretSpan]:
    """The same characters in spans that neither overlap nor touch."""
    if len(spans) < 2:
        return spans
    apart: list[SecretSpan] = []
    for span in sorted(spans):
        if apart and span.start <= apart[-1].end:
            apart[-1] = SecretSpan(apart[-1].start, max(apart[-1].end, span.end))
        else:
            apart.append(span)
    return apart
