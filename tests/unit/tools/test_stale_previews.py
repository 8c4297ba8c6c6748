"""A confirm token carries out what its preview showed, or nothing."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import pytest

from spass.core.errors import ConfirmTokenInvalid
from spass.core.ids import DocumentId, IndexId
from spass.core.time import Deadline
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.write.merge_job import merge
from spass.testing.faults import inject
from tests.unit.rag.conftest import RacingWriters
from tests.unit.tools.test_curating import BERLIN, CALLS, GATE, PARK, ToolUser, berlin, tool_user

__all__ = ["berlin", "tool_user"]

pytestmark = pytest.mark.anyio

GATE_BEFORE: Final = NewDocument(id="gate", text="Das Tor.", metadata={"year": 1788})
TOWER: Final = NewDocument(id="tower", text="Der Turm ist 368 m hoch.")
FRESH: Final = IndexId("fresh")

Change = Callable[[ToolUser], Awaitable[object]]


def put(*documents: NewDocument, index: IndexId = BERLIN) -> Change:
    return lambda tool_user: tool_user.harness.rag.writer.append(tool_user.scope, index, documents)


def replaced(*documents: NewDocument, index: IndexId = BERLIN) -> Change:
    return lambda tool_user: tool_user.harness.rag.writer.replace(tool_user.scope, index, documents)


def patched(document: str, **patch: Any) -> Change:
    return lambda tool_user: tool_user.harness.rag.patcher.patch(
        tool_user.scope, BERLIN, DocumentId(document), DocumentPatch.model_validate(patch)
    )


def deleted(document: str) -> Change:
    return lambda tool_user: tool_user.harness.rag.deleter.delete_document(tool_user.scope, BERLIN, DocumentId(document))


def index_deleted(index: IndexId = BERLIN) -> Change:
    return lambda tool_user: tool_user.harness.rag.deleter.delete_index(tool_user.scope, index)


def both(*changes: Change) -> Change:
    async def make(tool_user: ToolUser) -> None:
        for change in changes:
            await change(tool_user)

    return make


NEW: Final = NewDocument(id="new", text="Neu.")
SAME: Final = replaced(GATE_BEFORE, TOWER)
"""The index is another one that holds the same."""

ANY_CHANGE: Final = {
    "a new document": put(NEW),
    "a changed text": patched("tower", text="Der Turm."),
    "changed metadata": patched("tower", metadata={"a": 1}),
    "a document gone": deleted("tower"),
    "another index of the same content": SAME,
    "gone": index_deleted(),
}
OF_GATE: Final = {
    "another text": patched("gate", text="Ein Tor."),
    "other metadata": patched("gate", metadata={"year": 1791}),
    "metadata of another type": patched("gate", metadata={"year": 1788.5}),
    "gone": deleted("gate"),
    "another index of the same content": SAME,
    "no index any more": index_deleted(),
}
ELSEWHERE: Final = {
    "a new document": put(NEW),
    "another document changed": patched("tower", text="Der Turm."),
    "another document gone": deleted("tower"),
    "the same written once more": put(GATE_BEFORE),
    "changed and changed back": both(patched("gate", text="Ein Tor."), patched("gate", text="Das Tor.")),
    "another index changed": put(NEW, index=FRESH),
}
MATTERS: Final[Mapping[str, Mapping[str, Change]]] = {
    "rag_index_delete": ANY_CHANGE,
    "rag_index_create": ANY_CHANGE,
    "rag_doc_delete": OF_GATE,
    "rag_doc_patch": OF_GATE,
    "rag_doc_append": {
        "one more of its ids is there": put(NewDocument.model_validate(PARK)),
        "one of its ids is gone": deleted("gate"),
        "another index of the same content": SAME,
        "no index any more": index_deleted(),
    },
}
DOES_NOT_MATTER: Final[Mapping[str, Mapping[str, Change]]] = {
    "rag_index_delete": {"another index changed": put(NEW, index=FRESH)},
    "rag_index_create": {"another index changed": put(NEW, index=FRESH)},
    "rag_doc_delete": ELSEWHERE,
    "rag_doc_patch": ELSEWHERE,
    "rag_doc_append": {**ELSEWHERE, "a text that it replaces": patched("gate", text="Ein Tor.")},
}


def cases(of: Mapping[str, Mapping[str, Change]]) -> list[Any]:
    return [pytest.param(name, change, id=f"{name}-{what}") for name, changes in of.items() for what, change in changes.items()]


async def refused(tool_user: ToolUser, name: str, confirmed: Mapping[str, Any]) -> str:
    """The message with which the call is refused; it changed nothing and embedded nothing."""
    before, embedded = await tool_user.holds(), len(tool_user.harness.calls.asked)
    with pytest.raises(ConfirmTokenInvalid) as error:
        await tool_user.call(name, confirmed)
    assert error.value.param == "arguments.confirm_token"
    assert (await tool_user.holds(), len(tool_user.harness.calls.asked)) == (before, embedded)
    return error.value.message


@pytest.mark.parametrize(("name", "change"), cases(MATTERS))
async def test_what_the_preview_showed_has_changed(berlin: ToolUser, name: str, change: Change) -> None:
    confirmed = await berlin.asked(name, CALLS[name])
    await change(berlin)
    message = await refused(berlin, name, confirmed)
    assert "has changed since" in message
    assert "without confirm_token" in message
    assert await refused(berlin, name, confirmed) == message, "the token is not used up by that"


@pytest.mark.parametrize(("name", "change"), cases(MATTERS))
async def test_what_the_preview_showed_changes_while_the_call_is_carried_out(berlin: ToolUser, name: str, change: Change) -> None:
    confirmed = await berlin.asked(name, CALLS[name])
    rival = RacingWriters(lambda: change(berlin))
    with inject(rival), pytest.raises(ConfirmTokenInvalid) as error:
        await berlin.call(name, confirmed)
    assert "has changed since" in error.value.message
    assert rival.rivals == []
    after = await berlin.holds()
    await refused(berlin, name, confirmed)
    assert await berlin.holds() == after


@pytest.mark.parametrize(("name", "change"), cases(DOES_NOT_MATTER))
async def test_a_change_elsewhere_does_not_matter(berlin: ToolUser, name: str, change: Change) -> None:
    confirmed = await berlin.asked(name, CALLS[name])
    await change(berlin)
    with inject(RacingWriters(lambda: put(NewDocument(id="later", text="Später."), index=FRESH)(berlin))):
        assert "error" not in await berlin.call(name, confirmed)
    assert "used already" in await refused(berlin, name, confirmed)


@pytest.mark.parametrize("name", ["rag_doc_delete", "rag_doc_patch", "rag_doc_append"])
async def test_who_is_overtaken_by_a_change_elsewhere_goes_on(berlin: ToolUser, name: str) -> None:
    confirmed = await berlin.asked(name, CALLS[name])
    rivals = RacingWriters(lambda: put(NEW)(berlin), lambda: deleted("tower")(berlin))
    with inject(rivals):
        assert "error" not in await berlin.call(name, confirmed)
    assert rivals.rivals == []
    _, documents = await berlin.holds()
    assert "new" in documents
    assert "tower" not in documents


@pytest.mark.parametrize("name", ["rag_index_create", "rag_doc_append"])
async def test_an_index_that_was_to_be_new_exists_by_then(berlin: ToolUser, name: str) -> None:
    confirmed = await berlin.asked(name, {**CALLS[name], "index_id": FRESH})
    await put(NEW, index=FRESH)(berlin)
    assert "has changed since" in await refused(berlin, name, confirmed)
    await index_deleted(FRESH)(berlin)
    assert (await berlin.call(name, confirmed))["doc_count"] == 2, "there is none again, as the preview said"


@pytest.mark.parametrize("name", CALLS)
async def test_a_merge_changes_nothing_that_was_shown(berlin: ToolUser, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    monkeypatch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 1)
    for number in range(4):
        await put(NewDocument(id=f"d{number}", text="x"))(berlin)
    confirmed = await berlin.asked(name, CALLS[name])
    assert await merge(berlin.scope.store, ObjectCache(), BERLIN, Deadline.after(3600))
    assert "error" not in await berlin.call(name, confirmed)


async def test_the_preview_of_one_document_deletes_no_fifty(tool_user: ToolUser) -> None:
    await put(NewDocument.model_validate(GATE))(tool_user)
    confirmed = await tool_user.asked("rag_index_delete", CALLS["rag_index_delete"])
    await replaced(*(NewDocument(id=f"d{number}", text="Wichtig.") for number in range(50)))(tool_user)
    await refused(tool_user, "rag_index_delete", confirmed)
    _, documents = await tool_user.holds()
    assert len(documents) == 50
