"""Join the pieces of tool calls in OpenAI's format. Servers differ in what they repeat, what they leave out and what they cut."""

import json
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, Field

from spass.core.ids import new_id
from spass.core.messages import ToolCallDelta
from spass.models.providers.http import malformed_response
from spass.models.providers.payloads import SurrogateJoiner, join_surrogates
from spass.models.types import MAX_CALL_ID_CHARACTERS


class FunctionPayload(BaseModel):
    name: str | None = None
    arguments: str | dict[str, object] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.arguments, dict):
            return json.dumps(self.arguments, ensure_ascii=False)
        return self.arguments or ""


class ToolCallPayload(BaseModel):
    index: Annotated[int, Field(ge=0)] | None = None
    id: str | None = None
    function: FunctionPayload = FunctionPayload()


class OpenAiCalls:
    """The tool calls of one answer.

    The id and the name of a call may arrive in pieces. A delta has them in one piece, so both are held until the arguments begin
    or the answer ends. Deltas begin the calls in their order.
    """

    def __init__(self, texts: SurrogateJoiner) -> None:
        self._texts = texts
        self._count = 0
        self._held: dict[int, _Beginning] = {}  # our index -> a call that is not in a delta yet
        self._numbers: dict[tuple[int, str], int] = {}  # the provider's index and id of a call -> our index
        self._latest: dict[int, int] = {}  # the provider's index -> our index of the last call that had it

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, position: int, piece: ToolCallPayload) -> list[ToolCallDelta]:
        """Return what can be passed on after ``piece``, which is number ``position`` of its event."""
        index = self._index(position if piece.index is None else piece.index, piece)
        text = piece.function.text
        if (held := self._held.get(index)) is not None:
            held.add_name(piece.function.name or "")
        if not text:
            return []
        delta = ToolCallDelta(index, arguments=self._texts.add(index, text))
        if held is None:
            return [delta]
        held.deltas.append(delta)
        return self._release(index)

    def finish(self) -> list[ToolCallDelta]:
        """Return the calls that are held, without those whose names have not arrived."""
        return self._release(self._count)

    def end(self) -> list[ToolCallDelta]:
        """Return the calls that are held. No piece follows. Raise ``BackendUnavailable`` if a call has no name."""
        calls = self.finish()
        if self._held:
            raise malformed_response("a tool call has no name")
        return calls

    def _index(self, provider_index: int, piece: ToolCallPayload) -> int:
        """Return our index of the call to which ``piece`` belongs. A piece may begin a call."""
        latest = self._latest.get(provider_index)
        if latest is not None:
            if not piece.id:
                return latest
            if (known := self._numbers.get((provider_index, piece.id))) is not None:
                return known
            held = self._held.get(latest)
            if held is not None and not held.deltas and not held.name_pieces:
                self._extend_id(provider_index, held, piece.id)
                return latest
        # A new id starts a new call, even at the index of an earlier call: some servers give every call the index 0, and a call
        # without parameters may have no arguments. Only an id without a name is extended.
        index, self._count = self._count, self._count + 1
        self._held[index] = beginning = _Beginning(piece.id or "")
        self._numbers[provider_index, beginning.id] = self._latest[provider_index] = index
        return index

    def _extend_id(self, provider_index: int, held: "_Beginning", piece: str) -> None:
        if len(held.id) <= MAX_CALL_ID_CHARACTERS:  # a longer id is ignored
            index = self._numbers.pop((provider_index, held.id))
            held.id += piece
            self._numbers[provider_index, held.id] = index

    def _release(self, last: int) -> list[ToolCallDelta]:
        """Return the calls up to number ``last`` that are held, and those behind them whose arguments wait, as far as the names
        are known."""
        released: list[ToolCallDelta] = []
        while self._held:
            index, held = next(iter(self._held.items()))
            if not held.name_pieces or (index > last and not held.deltas):
                break
            del self._held[index]
            call_id, name = join_surrogates(held.id or new_id("call")), join_surrogates("".join(held.name_pieces))
            first, *others = held.deltas or [ToolCallDelta(index)]
            released += [replace(first, id=call_id, name=name), *others]
        return released


class _Beginning:
    """The id, the name and the arguments of a call that is held, as far as they have arrived."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name_pieces: list[str] = []
        self.deltas: list[ToolCallDelta] = []  # of the arguments
        self._name_length = 0

    def add_name(self, piece: str) -> None:
        """Add a piece of the name. Some servers repeat the whole name with every piece of the arguments."""
        if not piece or (len(piece) == self._name_length and piece == "".join(self.name_pieces)):
            return
        self.name_pieces.append(piece)
        self._name_length += len(piece)
