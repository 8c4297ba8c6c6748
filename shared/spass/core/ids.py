"""Names of things: types that keep one kind of id from standing in for another, and new time-ordered ids."""

import os
import time
from typing import Final, Literal, NewType

TenantId = NewType("TenantId", str)
UserId = NewType("UserId", str)
AgentName = NewType("AgentName", str)
SessionId = NewType("SessionId", str)
MessageId = NewType("MessageId", str)
RequestId = NewType("RequestId", str)
IndexId = NewType("IndexId", str)
DocumentId = NewType("DocumentId", str)
UploadId = NewType("UploadId", str)
JobId = NewType("JobId", str)
SummaryId = NewType("SummaryId", str)

RAG_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
"""The form of ids of indices and documents, which are the caller's."""

DOCUMENT_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}(#[1-9][0-9]*)?$"
"""The form of any document's id: the caller's, or ``<file>#<number>``, as bulk ingest names the pieces of a file. Besides, it has
128 characters at most (which the pattern leaves unsaid: pydantic's engine cannot look ahead)."""

AGENT_NAME: Final = "[a-zA-Z0-9_-]{1,128}"
"""The form of an agent's name in a path or a parameter. A file of an agent may use 64 characters."""

Prefix = Literal["ses", "msg", "sum", "job", "req", "seg", "gen", "turn", "call", "chatcmpl", "upl"]


def id_pattern(prefix: Prefix) -> str:
    """Return the regular expression of the ids that ``new_id(prefix)`` makes."""
    return rf"{prefix}_[0-9a-z]{{26}}"


# Crockford's base 32 in lower case: sorts as the number it writes, and has no letters that read alike.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS: Final = 10  # 50 bits hold 48 bits of milliseconds
_RANDOM_CHARS: Final = 16  # 80 random bits


def new_id(prefix: Prefix) -> str:
    """A new id such as ``ses_01k9…``: 48 bits of Unix milliseconds, then 80 random bits (https://github.com/ulid/spec).

    Ids sort by the millisecond of their making. The random part is read from the system at every call, never from a seeded
    generator, so a restored snapshot cannot repeat one.
    """
    return f"{prefix}_{_base32(time.time_ns() // 1_000_000, _TIME_CHARS)}{random_suffix()}"


def random_suffix() -> str:
    """80 random bits as 16 characters."""
    return _base32(int.from_bytes(os.urandom(10), "big"), _RANDOM_CHARS)


def _base32(number: int, length: int) -> str:
    characters = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        characters.append(_ALPHABET[digit])
    return "".join(reversed(characters))
