"""The memory of an operator, as the driver and the tools see it."""

from typing import Protocol

from spass.core.effects import Recalled, SearchNotes, StoreNote
from spass.core.messages import Json


class Memory(Protocol):
    """The notes and the state of one operator, during one turn."""

    async def recall(self, effect: SearchNotes) -> Recalled:
        """Return the notes that ``effect`` asks for, or raise ``StorageUnavailable``."""
        ...

    async def keep(self, effect: StoreNote) -> str:
        """Store a note and return its key. After ``StorageUnavailable`` repeat the call: storing it again changes nothing."""
        ...

    def set_state(self, value: Json) -> None:
        """Remember the state that the commit of the turn writes."""
        ...


class MemoryOfTurn(Memory, Protocol):
    """A memory that the commit of the turn reads."""

    @property
    def next_state(self) -> Json:
        """Return what ``set_state`` got last, or None."""
        ...
