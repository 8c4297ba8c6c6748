"""Types and patterns of ids, and a generator of ids that sort by time."""

import hashlib
import os
import threading
import time
from dataclasses import dataclass
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
WorkspaceId = NewType("WorkspaceId", str)
ApprovalId = NewType("ApprovalId", str)
OperatorId = NewType("OperatorId", str)
ManagedAgentId = NewType("ManagedAgentId", str)
RunId = NewType("RunId", str)

TENANT_ID: Final = r"[a-z0-9][a-z0-9-]{0,62}"
"""The pattern of the ids of tenants. It has no character that is a wildcard or a variable in a policy of AWS, or ends the id in a
key."""

RAG_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
"""The pattern of the ids of indices, documents and workspaces that a caller chooses."""

DOCUMENT_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}(#[1-9][0-9]*)?$"
"""The pattern of all document ids: a caller's id, or ``<file>#<number>`` for a piece of an ingested file. An id has at most 128
characters. The pattern does not check this, because pydantic's engine has no look-ahead."""

CLIENT_ID: Final = r"^[A-Za-z0-9._:-]{1,128}$"
"""The pattern of the ids that a client of ``/c1`` chooses for messages and sessions."""

OPERATOR_ID: Final = r"^[A-Za-z0-9_.:-]{1,64}$"
"""The pattern of the ids of operators."""

AGENT_NAME: Final = "[a-zA-Z0-9_-]{1,128}"
"""The pattern of an agent's name in a path or a parameter. (``agents.spec`` allows only 64 characters in a file.)"""

AGENT_MODEL_PREFIX: Final = "agent/"
"""The beginning of the name under which an agent is a model of ``/v1``: ``agent/<name>``. No model of the catalogue begins so."""

Prefix = Literal["ses", "msg", "sum", "job", "req", "seg", "gen", "turn", "call", "chatcmpl", "upl", "apr", "agt", "run"]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of ``user``, the owner (``Caller.owner``). Another owner's operator with the same ``id`` is another one."""

    user: UserId
    id: OperatorId


def id_pattern(prefix: Prefix) -> str:
    """Return the regular expression of the ids that ``new_id(prefix)`` makes."""
    return rf"{prefix}_[0-9a-z]{{26}}"


# Crockford's base 32 in lower case: texts sort like the numbers that they encode, and no two characters look alike.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS: Final = 10  # 50 bits hold 48 bits of milliseconds
_RANDOM_CHARS: Final = 16  # 80 random bits


def new_id(prefix: Prefix) -> str:
    """Return a new id such as ``ses_01k9…``: 48 bits of Unix milliseconds, then 79 random bits (https://github.com/ulid/spec).

    The ids of a process increase while its clock does, also within a millisecond. The random part comes from the system and not
    from a seeded generator, because Lambda may restore one snapshot of a process many times.
    """
    return f"{prefix}_{_base32(_ascending.next(), _TIME_CHARS + _RANDOM_CHARS)}"


def derived_id(prefix: Prefix, milliseconds: int, name: str) -> str:
    """Return the id of ``name``, always the same one. It sorts as an id that was made at ``milliseconds`` since the epoch."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:10], "big")
    return f"{prefix}_{_base32((milliseconds << 80) + digest, _TIME_CHARS + _RANDOM_CHARS)}"


class AscendingNumbers:
    """Numbers of 48 bits of Unix milliseconds and 79 random bits. Within a millisecond, each is greater than the one before."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        milliseconds = time.time_ns() // 1_000_000
        number = (milliseconds << 80) + (_random_number(10) >> 1)  # one bit is room for the ids that follow in this millisecond
        with self._lock:
            if milliseconds == self._last >> 80 and number <= self._last:
                number = self._last + 1 + _random_number(8)  # 64 random bits, so that an id cannot be guessed from the one before
            self._last = number
        return number


_ascending: Final = AscendingNumbers()


def _random_number(count: int) -> int:
    return int.from_bytes(os.urandom(count), "big")


def random_suffix() -> str:
    """Return 80 random bits as 16 characters."""
    return _base32(_random_number(10), _RANDOM_CHARS)


def _base32(number: int, length: int) -> str:
    characters = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        characters.append(_ALPHABET[digit])
    return "".join(reversed(characters))
