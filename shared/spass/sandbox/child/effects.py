"""Answer calls to the outside from the journal, and after its end by asking the parent."""

from __future__ import annotations

from _blake2 import blake2b
from posix import _exit

from spass.sandbox.child.connection import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from spass.sandbox.child.connection import Connection, Json
    from spass.sandbox.child.repeatability import Clock

MAX_REQUEST = 4 * 2**20
"""Characters of the requests of one wait, as JSON."""
MAX_REQUEST_BYTES = 2 * MAX_REQUEST - 2**10
"""Bytes of the same in UTF-8: the line that holds them has a few more."""
_BROKEN_PARENT = 3


class RequestFailed(Exception):
    """A call failed. ``code`` is one of the gateway's error codes."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.args[0]}" if self.args else self.code


class LLMError(RequestFailed):
    """A model call failed. ``code`` is one of the gateway's error codes."""


class ToolError(RequestFailed):
    """A tool call failed. ``code`` is one of the gateway's error codes."""


class Effects:
    """The waits of all cells."""

    def __init__(self, connection: Connection, clock: Clock, waits: int) -> None:
        self._connection = connection
        self._clock = clock
        self._limit = waits
        self._waits = 0
        self._cell = 0
        self._journal: Sequence[Mapping[str, Any]] | None = None
        self._position = 0
        self._is_replay = False

    def begin(self, cell: int, journal: Sequence[Mapping[str, Any]], *, is_replay: bool) -> None:
        """Start a cell. ``is_replay``: another cell follows, so this one has ended with this journal before."""
        self._cell = cell
        self._journal = journal
        self._position = 0
        self._is_replay = is_replay

    def end(self) -> None:
        """End the cell. End the process if the cell did not ask for everything that its journal contains."""
        if self._journal is not None and self._position < len(self._journal):
            self._connection.end("diverged", {"cell": self._cell})
        self._journal = None

    @property
    def is_open(self) -> bool:
        """Return True while a cell runs."""
        return self._journal is not None

    def perform(self, requests: Sequence[Json], failure: type[RequestFailed]) -> Sequence[Mapping[str, Any]]:
        """Return the replies to ``requests``, which are performed side by side. Raise an error of the type ``failure`` if
        a limit is reached; then nothing was performed."""
        if not self.is_open:
            raise failure("A call is possible only while a cell runs.", "invalid_request")
        text = encode(requests)
        if len(text) > MAX_REQUEST:
            raise failure(f"The call has {len(text)} characters; at most {MAX_REQUEST} are possible.", "invalid_request")
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_REQUEST_BYTES:
            raise failure(f"The call has {len(data)} bytes; at most {MAX_REQUEST_BYTES} are possible.", "invalid_request")
        if self._waits >= self._limit:
            raise failure(
                f"The code has waited {self._limit} times in this turn, which is the limit. "
                "Use llm_batch: a list of prompts is one wait.",
                "too_many_sub_calls",
            )
        self._waits += 1
        entry = self._answer(requests, blake2b(data, digest_size=16).hexdigest())
        self._clock.advance_to(entry["time"])
        replies: Sequence[Mapping[str, Any]] = entry["replies"]
        if len(replies) != len(requests):
            _exit(_BROKEN_PARENT)
        return replies

    def _answer(self, requests: Sequence[Json], digest: str) -> Mapping[str, Any]:
        """Return the entry of the journal. Ask the parent for it if it is not there yet."""
        journal = self._journal or ()
        position = self._position
        self._position += 1
        if position < len(journal):
            if journal[position]["hash"] != digest:
                self._connection.end("diverged", {"cell": self._cell})
            return journal[position]
        if self._is_replay:
            self._connection.end("diverged", {"cell": self._cell})
        self._connection.send("effect", {"cell": self._cell, "hash": digest, "requests": requests})
        line = self._connection.receive()
        if line is None:
            self._connection.end("suspended", True)
        entry: Mapping[str, Any] = line["entry"]
        if entry["hash"] != digest:  # the code has interrupted an earlier call and left its answer in the pipe
            _exit(_BROKEN_PARENT)
        return entry
