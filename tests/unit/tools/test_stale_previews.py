"""The second call makes exactly the change that the preview showed, or none."""

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


def append(*documents: NewDocument, index: IndexId = BERLIN) -> Change:
    return lambda tool_user: tool_user.harness.rag.writer.append(tool_user.scope, index, documents)


def replace(*documents: NewDocument, index: IndexId = BERLIN) -> Change:
    return lambda tool_user: tool_user.harness.rag.writer.replace(tool_user.scope, index, documents)


def patch(document: str, **fields: Any) -> Change:
    return lambda tool_user: tool_user.harness.rag.writer.patch(
        tool_user.scope, BERLIN, DocumentId(document), DocumentPatch.model_validate(fields)
    )


def delete(document: str) -> Change:
    return lambda tool_user: tool_user.harness.rag.deleter.delete_document(tool_user.scope, BERLIN, DocumentId(document))


def delete_index(index: IndexId = BERLIN) -> Change:
    return lambda tool_user: tool_user.harness.rag.deleter.delete_index(tool_user.scope, index)


def both(*changes: Change) -> Change:
    async def run(tool_user: ToolUser) -> None:
        for change in changes:
            await change(tool_user)

    return run


NEW: Final = NewDocument(id="new", text="Neu.")
SAME: Final = replace(GATE_BEFORE, TOWER)
"""Replace the index by a new one with the same documents."""

INDEX_CHANGES: Final = {
    "a new document": append(NEW),
    "a changed text": patch("tower", text="Der Turm."),
    "changed metadata": patch("tower", metadata={"a": 1}),
    "a document gone": delete("tower"),
    "another index of the same content": SAME,
    "gone": delete_index(),
}
GATE_CHANGES: Final = {
    "another text": patch("gate", text="Ein Tor."),
    "other metadata": patch("gate", metadata={"year": 1791}),
    "metadata of another type": patch("gate", metadata={"year": 1788.5}),
    "gone": delete("gate"),
    "another index of the same content": SAME,
    "no index any more": delete_index(),
}
OTHER_CHANGES: Final = {
    "a new document": append(NEW),
    "another document changed": patch("tower", text="Der Turm."),
    "another document gone": delete("tower"),
    "the same written once more": append(GATE_BEFORE),
    "changed and changed back": both(patch("gate", text="Ein Tor."), patch("gate", text="Das Tor.")),
    "another index changed": append(NEW, index=FRESH),
}
RELEVANT: Final[Mapping[str, Mapping[str, Change]]] = {
    "rag_index_delete": INDEX_CHANGES,
    "rag_index_create": INDEX_CHANGES,
    "rag_doc_delete": GATE_CHANGES,
    "rag_doc_patch": GATE_CHANGES,
    "rag_doc_append": {
        "one more of its ids is there": append(NewDocument.model_validate(PARK)),
        "one of its ids is gone": delete("gate"),
        "another index of the same content": SAME,
        "no index any more": delete_index(),
    },
}
IRRELEVANT: Final[Mapping[str, Mapping[str, Change]]] = {
    "rag_index_delete": {"another index changed": append(NEW, index=FRESH)},
    "rag_index_create": {"another index changed": append(NEW, index=FRESH)},
    "rag_doc_delete": OTHER_CHANGES,
    "rag_doc_patch": OTHER_CHANGES,
    "rag_doc_append": {**OTHER_CHANGES, "a text that it replaces": patch("gate", text="Ein Tor.")},
}


def cases(changes_by_tool: Mapping[str, Mapping[str, Change]]) -> list[Any]:
    return [
        pytest.param(tool, change, id=f"{tool}-{name}")
        for tool, changes in changes_by_tool.items()
        for name, change in changes.items()
    ]


async def refusal(tool_user: ToolUser, name: str, confirmed: Mapping[str, Any]) -> str:
    """Return the message of the refused call. Check that it changed nothing and embedded nothing."""
    before, embedded = await tool_user.contents(), len(tool_user.harness.calls.texts)
    with pytest.raises(ConfirmTokenInvalid) as error:
        await tool_user.call(name, confirmed)
    assert error.value.param == "arguments.confirm_token"
    assert (await tool_user.contents(), len(tool_user.harness.calls.texts)) == (before, embedded)
    return error.value.message


@pytest.mark.parametrize(("name", "change"), cases(RELEVANT))
async def test_a_change_after_the_preview_is_refused(berlin: ToolUser, name: str, change: Change) -> None:
    confirmed = await berlin.confirm(name, CALLS[name])
    await change(berlin)
    message = await refusal(berlin, name, confirmed)
    assert "has changed since" in message
    assert "without confirm_token" in message
    assert await refusal(berlin, name, confirmed) == message, "a refusal does not use the token"


@pytest.mark.parametrize(("name", "change"), cases(RELEVANT))
async def test_a_change_during_the_second_call_is_refused(berlin: ToolUser, name: str, change: Change) -> None:
    confirmed = await berlin.confirm(name, CALLS[name])
    rival = RacingWriters(lambda: change(berlin))
    with inject(rival), pytest.raises(ConfirmTokenInvalid) as error:
        await berlin.call(name, confirmed)
    assert "has changed since" in error.value.message
    assert rival.rivals == []
    after = await berlin.contents()
    await refusal(berlin, name, confirmed)
    assert await berlin.contents() == after


@pytest.mark.parametrize(("name", "change"), cases(IRRELEVANT))
async def test_a_change_outside_the_preview_is_accepted(berlin: ToolUser, name: str, change: Change) -> None:
    confirmed = await berlin.confirm(name, CALLS[name])
    await change(berlin)
    with inject(RacingWriters(lambda: append(NewDocument(id="later", text="Später."), index=FRESH)(berlin))):
        assert "error" not in await berlin.call(name, confirmed)
    assert "used already" in await refusal(berlin, name, confirmed)


@pytest.mark.parametrize("name", ["rag_doc_delete", "rag_doc_patch", "rag_doc_append"])
async def test_the_second_call_retries_after_changes_outside_the_preview(berlin: ToolUser, name: str) -> None:
    confirmed = await berlin.confirm(name, CALLS[name])
    rivals = RacingWriters(lambda: append(NEW)(berlin), lambda: delete("tower")(berlin))
    with inject(rivals):
        assert "error" not in await berlin.call(name, confirmed)
    assert rivals.rivals == []
    _, documents = await berlin.contents()
    assert "new" in documents
    assert "tower" not in documents


@pytest.mark.parametrize("name", ["rag_index_create", "rag_doc_append"])
async def test_a_preview_of_a_new_index_is_refused_once_the_index_exists(berlin: ToolUser, name: str) -> None:
    confirmed = await berlin.confirm(name, {**CALLS[name], "index_id": FRESH})
    await append(NEW, index=FRESH)(berlin)
    assert "has changed since" in await refusal(berlin, name, confirmed)
    await delete_index(FRESH)(berlin)
    assert (await berlin.call(name, confirmed))["doc_count"] == 2, "there is no index, as in the preview"


@pytest.mark.parametrize("name", CALLS)
async def test_a_merge_does_not_invalidate_a_preview(berlin: ToolUser, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    monkeypatch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 1)
    for number in range(4):
        await append(NewDocument(id=f"d{number}", text="x"))(berlin)
    confirmed = await berlin.confirm(name, CALLS[name])
    assert await merge(berlin.scope.store, ObjectCache(), BERLIN, Deadline.after(3600))
    assert "error" not in await berlin.call(name, confirmed)


async def test_a_preview_of_one_document_does_not_delete_fifty(tool_user: ToolUser) -> None:
    await append(NewDocument.model_validate(GATE))(tool_user)
    confirmed = await tool_user.confirm("rag_index_delete", CALLS["rag_index_delete"])
    await replace(*(NewDocument(id=f"d{number}", text="Wichtig.") for number in range(50)))(tool_user)
    await refusal(tool_user, "rag_index_delete", confirmed)
    _, documents = await tool_user.contents()
    assert len(documents) == 50
