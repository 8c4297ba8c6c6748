"""Consent to one exact call of a tool that writes: a confirm token of the caller, or a person's approval."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from spass.calls.scope import Scope
from spass.core.errors import SpassError
from spass.core.messages import Json
from spass.rag.index.answers import Document, WriteAnswer
from spass.store.writes import Write
from spass.tenancy.memory_notes import NoteResult

WriteResult: TypeAlias = WriteAnswer | Document | NoteResult | bool
"""The result of a confirmed write. A ``bool`` says whether something was deleted."""


def to_result(written: WriteResult) -> dict[str, Json]:
    """Return ``written`` in the form of the HTTP route that makes the same change."""
    match written:
        case bool():
            return {"deleted": written}
        case NoteResult():
            return {"memory_size_bytes": written.memory_size_bytes}
        case WriteAnswer() | Document():
            return written.to_dict()


class Consent(Protocol):
    """Consent to one call (a ``Participant`` of its write). The transaction of the write uses it up."""

    def allows(self, state: str, /) -> bool:
        """Return whether the preview of the call showed ``state``, an entity tag."""
        ...

    async def writes(self, written: WriteResult, /) -> Sequence[Write]:
        """Return the writes that use up the consent, and those that store the result."""
        ...

    def refusal(self) -> SpassError:
        """Return the error of a call whose consent was used up by another call."""
        ...

    async def outdated(self, scope: Scope, /) -> SpassError:
        """Return the error of a call whose preview is out of date."""
        ...
