"""The memory of an operator whose code runs in this process, without a gateway."""

from typing import Final

from spass.core.effects import Note, Recalled, SearchNotes, StoreNote
from spass.core.messages import Json, Message
from spass.core.time import Timestamp, now
from spass.memory.notes import MAX_NOTES, StoredNote, make_note, normalise_end, rank_by_words
from spass.memory.state import STATE_KEY, state_text

_GENERATION: Final = "process"


class ProcessMemory:
    """The conversation, the state and the notes of one operator, from run to run, in the memory of this process. It implements
    ``core.memory.Memory``. A search by meaning finds what the words of the query find."""

    def __init__(self) -> None:
        self.conversation: tuple[Message, ...] = ()
        self.next_state: Json = None
        self._state: Json = None
        self._state_at = Timestamp("")
        self._notes: dict[str, StoredNote] = {}

    async def recall(self, effect: SearchNotes) -> Recalled:
        """Return the notes that ``effect`` asks for."""
        notes = tuple(self._notes.values())
        match effect.by:
            case "key" if effect.query == STATE_KEY:
                return Recalled(self._state_note())
            case "key":
                return Recalled(tuple(note.found() for note in notes if note.key == effect.query))
            case "ends":
                end = normalise_end(effect.query)
                found = [note for note in notes if end in map(normalise_end, note.ends)]
                return Recalled(tuple(note.found() for note in reversed(found))[: max(effect.limit, 0)])
            case _:
                return Recalled(await rank_by_words(notes, effect.query, effect.limit))

    async def keep(self, effect: StoreNote) -> str:
        """Store a note and return its key. Beyond ``MAX_NOTES`` notes the oldest is dropped."""
        note = make_note(effect.content, effect.key, effect.ends, _GENERATION, now())
        self._notes.pop(note.key, None)
        self._notes[note.key] = note
        if len(self._notes) > MAX_NOTES:
            del self._notes[next(iter(self._notes))]
        return note.key

    def set_state(self, value: Json) -> None:
        """Remember the state that ``commit`` writes."""
        self.next_state = value

    def begin(self) -> None:
        """Begin a run: forget the state that a run has set which did not end."""
        self.next_state = None

    def commit(self, messages: tuple[Message, ...]) -> None:
        """End a run: append its ``messages`` to the conversation, and write the state that it has set."""
        self.conversation += messages
        if self.next_state is not None:
            self._state, self._state_at = self.next_state, now()

    def _state_note(self) -> tuple[Note, ...]:
        state = self._state if self.next_state is None else self.next_state
        return (Note(STATE_KEY, state_text(state), created_at=self._state_at),) if state is not None else ()
