"""Measure the processor time of the prompt defence and the redaction, for ordinary texts and for the slowest text found.

    python -m bench.texts [--characters N]

The search builds short texts: every character of ``ALPHABET`` repeated, and every pair of characters repeated. It measures each
as a user's message, as a tool's answer and as a model's answer. Then it measures the ten slowest in full length and prints the
slowest of them. All times are seconds on one core.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from spass.calls.defence import sanitize_request
from spass.calls.reply_redaction import ReplyRedactor
from spass.core.messages import Message, Role
from spass.models.types import ChatDelta, ChatRequest
from spass.redaction.redactor import Redactor

ALPHABET: Final = (
    *("a", "1", "é", "中", "क", "ب", "ᠠ", "😀", "❤", "\U0001f3f4", "\u0301", "©", "#", "\u20e3", "ˆ", "‹", "＜", "｜", "▁"),
    *(" ", "\n", "\r", "\t", "\x0b", "\x85", "\u00a0", "\u2028", "\u3000", "\u2800"),
    *("\x00", "\x7f", "\xad", "\u180b", "\u200b", "\u200d", "\u202e", "\ufe0f", "\ufeff", "\U000e0067", "\U000e0100"),
    *("<", ">", "[", "]", "|", "/", "\\", "{", '"', ":", "=", "-", "@", ".", "_"),
    *("<s>", "<|a", "<d", "</data", "[/", "\nHuman:", "\\n", "\\u0041", "://", "sk-", "eyJ", "AKIA", "aws ", "Bearer "),
    *("-----BEGIN PRIVATE KEY-----", "AccountKey=", "0a"),
)
"""One character of every class that the defence or the redaction treats differently, and beginnings of texts that they match."""

ORDINARY_TEXTS: Final = {
    "plain words": "Plain words in a row. ",
    "umlauts and quotes": "Schöne „Wörter“ in Folge. ",
    "JSON": '{"a": ["b c", 1.5]}, ',
}
REDACTOR: Final = Redactor(token_sha256=["00" * 32] * 8, variables=(), keys=lambda: ["wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"])
_PROBE_CHARACTERS: Final = 10_000


def defend_message(role: Role, text: str) -> None:
    """Sanitize a request with one message. Its last character becomes an x, because a text that matches a pattern except at its
    end takes longest."""
    sanitize_request(ChatRequest("m", (Message(role, f"{text[:-1]}x", tool_call_id="c"),)))


def redact_answer(piece: int, text: str) -> None:
    """Redact an answer that arrives in pieces of ``piece`` characters."""
    redactor = ReplyRedactor(REDACTOR)
    for start in range(0, len(text), piece):
        redactor.feed(ChatDelta(text[start : start + piece]))
    redactor.flush()


OPERATIONS: Final[Mapping[str, Callable[[str], None]]] = {
    "a user's message": partial(defend_message, Role.USER),
    "a tool's answer": partial(defend_message, Role.TOOL),
    "a model's answer, whole": partial(redact_answer, 10**7),
    "a model's answer in pieces of 8": partial(redact_answer, 8),
}


def repeat_to_length(unit: str, characters: int) -> str:
    return (unit * (characters // len(unit) + 1))[:characters]


def measure_seconds(work: Callable[[str], None], text: str) -> float:
    """Return the processor time of ``work`` in this thread."""
    start = time.thread_time()
    work(text)
    return time.thread_time() - start


def search_units() -> Iterable[str]:
    """Yield every character of ``ALPHABET`` and every pair of them."""
    yield from ALPHABET
    yield from map("".join, itertools.product(ALPHABET, repeat=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=1_000_000, help="length of each text in characters (default 1,000,000)")
    characters = parser.parse_args().characters
    for name, work in OPERATIONS.items():
        for unit in ALPHABET:
            work(unit * 3)  # compiles the patterns that this text needs, so that no measurement includes it
        for kind, unit in ORDINARY_TEXTS.items():
            print(f"{name}, {kind}: {measure_seconds(work, repeat_to_length(unit, characters)):.3f} s")
        slow = sorted(search_units(), key=lambda unit: -measure_seconds(work, repeat_to_length(unit, _PROBE_CHARACTERS)))[:10]
        worst, unit = max((measure_seconds(work, repeat_to_length(unit, characters)), unit) for unit in slow)
        print(f"{name}, the slowest ({unit!a} repeated): {worst:.3f} s")


if __name__ == "__main__":
    main()
