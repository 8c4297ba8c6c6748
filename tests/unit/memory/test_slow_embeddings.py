"""An embedding model that does not answer takes half of the time of a turn, once."""

import asyncio
from collections.abc import Sequence

import pytest

from spass.calls.scope import REQUEST_SECONDS, Scope
from spass.core.effects import SearchNotes, StoreNote
from spass.models.types import EmbeddingReply
from tests.unit.memory.operators import LetterCalls, Operators
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

LISTEN = SearchNotes("listen", "semantic", 8)


class SilentCalls(LetterCalls):
    """Embedding calls without an answer. ``begun`` counts them."""

    begun = 0

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        self.begun += 1
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")


async def test_a_turn_continues_with_half_of_its_time_and_asks_no_more() -> None:
    calls = SilentCalls()
    operators = Operators(calls=calls)
    memory = await operators.started()
    begun = asyncio.get_running_loop().time()
    keys = [await memory.keep(StoreNote(content)) for content in ("silent", "zzz")]
    recalled = await memory.recall(LISTEN)
    assert recalled.error is not None
    assert (recalled.notes, recalled.error.code) == ((), "upstream_timeout")
    assert asyncio.get_running_loop().time() - begun == pytest.approx(REQUEST_SECONDS / 2, abs=1)
    assert calls.begun == 1
    operators.calls = LetterCalls()
    later = await operators.memory().recall(LISTEN)
    assert {note.key for note in later.notes} == {*keys}
