"""The tools that read an index in small pages and change it in two steps."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spass.calls.scope import Scope
from spass.core.errors import (
    ConfirmTokenExpired,
    ConfirmTokenInvalid,
    EmbeddingModelMismatch,
    InvalidInput,
    InvalidRequest,
    UpstreamError,
)
from spass.core.ids import DocumentId, IndexId, UserId
from spass.core.messages import ToolCall
from spass.core.time import now_s
from spass.rag.index.documents import NewDocument
from spass.tools.registry import load_tool
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import Toolbox
from tests.unit.rag.conftest import RagHarness, config_with
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio

BERLIN = IndexId("berlin")
GATE = {"id": "gate", "text": "Das Tor wurde 1791 gebaut.", "metadata": {"year": 1791}}
PARK = {"id": "park", "text": "Der Tiergarten hat 210 Hektar."}

CALLS: Mapping[str, dict[str, Any]] = {
    "rag_index_create": {"index_id": "berlin", "documents": [GATE, PARK]},
    "rag_doc_append": {"index_id": "berlin", "documents": [GATE, PARK]},
    "rag_doc_patch": {"index_id": "berlin", "doc_id": "gate", "text": "Neu.", "metadata": {"year": 1, "tags": ["a", "b"]}},
    "rag_doc_delete": {"index_id": "berlin", "doc_id": "gate"},
    "rag_index_delete": {"index_id": "berlin"},
}
"""A valid call of each tool that writes, for an index with the document ``gate``."""


@dataclass(slots=True)
class ToolUser:
    """A user of the tools of one process."""

    harness: RagHarness
    box: Toolbox
    scope: Scope

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return (await self.box.execute_direct(self.scope, name, arguments)).body.result

    async def confirm(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make the first call, and return the arguments of the second."""
        first = await self.call(name, arguments)
        assert set(first) == {"confirm_required", "confirm_token", "expires_in_seconds", "op", "preview", "message"}, first
        assert first["confirm_required"] is True
        assert first["expires_in_seconds"] == 60
        assert first["op"] == name
        assert name in first["message"]
        return {**arguments, "confirm_token": first["confirm_token"]}

    def later(self) -> "ToolUser":
        """Return the same user 62 seconds later, when all tokens have expired."""
        return replace(self, box=toolbox_of(rag=self.harness.rag, clock=lambda: now_s() + 62))

    async def preview(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return (await self.call(name, arguments))["preview"]

    async def contents(self) -> Any:
        """Return the version of the index and its documents by id, or None if there is no index."""
        described = await self.call("rag_index_describe", {"index_id": BERLIN})
        if "error" in described:
            return None
        page = await self.harness.rag.reader.documents(self.scope, BERLIN)
        return described["version"], {document.id: (document.text, document.metadata) for document in page.documents}


@pytest.fixture
def tool_user(harness: RagHarness) -> ToolUser:
    scope = replace(harness.scope, caller=replace(harness.scope.caller, user=UserId("ada")))
    return ToolUser(harness, toolbox_of(rag=harness.rag), scope)


@pytest.fixture
async def berlin(tool_user: ToolUser) -> ToolUser:
    """Return a user with an index of the documents ``gate`` and ``tower``."""
    await tool_user.harness.rag.writer.append(
        tool_user.scope, BERLIN, [NewDocument(id="gate", text="Das Tor.", metadata={"year": 1788})]
    )
    await tool_user.harness.rag.writer.append(tool_user.scope, BERLIN, [NewDocument(id="tower", text="Der Turm ist 368 m hoch.")])
    return tool_user


def error_code(result: Any) -> str:
    return str(result["error"]["code"])


async def test_an_index_is_created_changed_and_deleted_in_two_steps(tool_user: ToolUser) -> None:
    create = await tool_user.confirm("rag_index_create", CALLS["rag_index_create"])
    assert await tool_user.contents() is None
    assert await tool_user.call("rag_index_create", create) == {
        "index_id": "berlin",
        "doc_count": 2,
        "ingested": 2,
        "replaced": 0,
        "version": 1,
    }
    add = {"index_id": "berlin", "documents": [PARK, {"id": "tower", "text": "Der Turm."}]}
    answer = await tool_user.call("rag_doc_append", await tool_user.confirm("rag_doc_append", add))
    assert answer == {"index_id": "berlin", "doc_count": 3, "ingested": 2, "replaced": 1, "version": 2}
    patch = {"index_id": "berlin", "doc_id": "tower", "metadata": {"metres": 368}}
    patched = await tool_user.call("rag_doc_patch", await tool_user.confirm("rag_doc_patch", patch))
    assert set(patched) == {"id", "text", "metadata", "created_at", "updated_at"}
    assert (patched["id"], patched["text"], patched["metadata"]) == ("tower", "Der Turm.", {"metres": 368})
    delete = {"index_id": "berlin", "doc_id": "park"}
    assert await tool_user.call("rag_doc_delete", await tool_user.confirm("rag_doc_delete", delete)) == {"deleted": True}
    assert await tool_user.contents() == (4, {"gate": (GATE["text"], GATE["metadata"]), "tower": ("Der Turm.", {"metres": 368})})
    whole = {"index_id": "berlin"}
    assert await tool_user.call("rag_index_delete", await tool_user.confirm("rag_index_delete", whole)) == {"deleted": True}
    assert await tool_user.contents() is None


async def test_the_preview_of_a_creation_counts_the_documents_to_delete(berlin: ToolUser) -> None:
    size = len(GATE["text"].encode()) + len(PARK["text"].encode())  # type: ignore[attr-defined]
    preview = await berlin.preview("rag_index_create", CALLS["rag_index_create"])
    semantics = preview["shape_summary"].pop("replace_semantics")
    assert preview == {"index_id": "berlin", "shape_summary": {"doc_count": 2, "total_bytes": size}}
    assert "All of its 2 documents are deleted" in semantics
    new = await berlin.preview("rag_index_create", {**CALLS["rag_index_create"], "index_id": "new"})
    assert "new index" in new["shape_summary"]["replace_semantics"]


async def test_the_preview_of_an_append_lists_the_ids_that_exist(berlin: ToolUser) -> None:
    documents = [{"id": name, "text": "ü"} for name in ("tower", "new", "gate")]
    assert await berlin.preview("rag_doc_append", {"index_id": "berlin", "documents": documents}) == {
        "index_id": "berlin",
        "shape_summary": {"doc_count": 3, "total_bytes": 6},
        "conflicting_existing_ids": ["gate", "tower"],
    }
    absent = await berlin.preview("rag_doc_append", {"index_id": "new", "documents": documents})
    assert absent["conflicting_existing_ids"] == []


@pytest.mark.parametrize(
    ("given", "changed", "size"),
    [
        ({"text": "Größe"}, ["text"], 7),
        ({"metadata": {}}, ["metadata"], 8),
        ({"text": "Größe", "metadata": {"a": None}}, ["text", "metadata"], 7),
        ({"text": "Das Tor.", "metadata": {"year": 1788}}, [], 8),
        ({"text": None, "metadata": {"year": 1788.5}}, ["metadata"], 8),
        ({"metadata": {"year": 1788.0}}, ["metadata"], 8),
    ],
)
async def test_the_preview_of_a_patch_lists_the_fields_that_change(
    berlin: ToolUser, given: Any, changed: list[str], size: int
) -> None:
    assert await berlin.preview("rag_doc_patch", {"index_id": "berlin", "doc_id": "gate", **given}) == {
        "index_id": "berlin",
        "doc_id": "gate",
        "changed_fields": changed,
        "new_text_size_bytes": size,
    }


async def test_a_patch_distinguishes_true_from_1_and_ignores_member_order(tool_user: ToolUser) -> None:
    await tool_user.harness.rag.writer.append(
        tool_user.scope, BERLIN, [NewDocument(id="gate", text="Das Tor.", metadata={"a": 1, "b": [2]})]
    )
    patch = {"index_id": "berlin", "doc_id": "gate"}
    assert (await tool_user.preview("rag_doc_patch", {**patch, "metadata": {"a": True, "b": [2]}}))["changed_fields"] == [
        "metadata"
    ]
    assert (await tool_user.preview("rag_doc_patch", {**patch, "metadata": {"b": [2], "a": 1}}))["changed_fields"] == []


@pytest.mark.parametrize(("text", "truncated"), [("ü" * 200, False), ("ü" * 201, True), ("kurz", False)])
async def test_the_preview_of_a_document_deletion_shows_an_excerpt(tool_user: ToolUser, text: str, truncated: bool) -> None:
    await tool_user.harness.rag.writer.append(tool_user.scope, BERLIN, [NewDocument(id="gate", text=text, metadata={"a": [1]})])
    assert await tool_user.preview("rag_doc_delete", CALLS["rag_doc_delete"]) == {
        "index_id": "berlin",
        "doc_id": "gate",
        "text_size_bytes": len(text.encode()),
        "text_excerpt": text[:200],
        "text_excerpt_truncated": truncated,
        "metadata": {"a": [1]},
    }


async def test_the_preview_of_an_index_deletion_shows_its_size(tool_user: ToolUser) -> None:
    documents = [NewDocument(id=f"d{n:02}", text="ü") for n in range(12)]
    await tool_user.harness.rag.writer.append(tool_user.scope, BERLIN, documents)
    described = await tool_user.call("rag_index_describe", {"index_id": "berlin"})
    assert await tool_user.preview("rag_index_delete", CALLS["rag_index_delete"]) == {
        "index_id": "berlin",
        "doc_count": 12,
        "total_text_bytes": 24,
        "embedding_model": "arithmetic",
        "created_at": described["created_at"],
        "sample_doc_ids": [f"d{n:02}" for n in range(10)],
        "sample_truncated_at": 10,
    }


@pytest.mark.parametrize("name", CALLS)
async def test_the_second_call_makes_the_change_once(berlin: ToolUser, name: str) -> None:
    before = await berlin.contents()
    confirmed = await berlin.confirm(name, CALLS[name])
    assert await berlin.contents() == before
    assert "error" not in await berlin.call(name, confirmed)
    after = await berlin.contents()
    assert after != before
    with pytest.raises(ConfirmTokenInvalid):
        await berlin.call(name, confirmed)
    assert await berlin.contents() == after


CHANGES: Mapping[str, list[dict[str, Any]]] = {
    "rag_index_create": [
        {"index_id": "berlin2"},
        {"documents": [PARK, GATE]},
        {"documents": [GATE]},
        {"documents": [GATE, {**PARK, "id": "park2"}]},
        {"documents": [GATE, {**PARK, "text": "Der Tiergarten hat 211 Hektar."}]},
        {"documents": [{**GATE, "metadata": {"year": 1791.0}}, PARK]},
    ],
    "rag_doc_append": [{"index_id": "berlin2"}, {"documents": [GATE]}, {"documents": [GATE, {**PARK, "metadata": {"a": None}}]}],
    "rag_doc_patch": [
        {"index_id": "berlin2"},
        {"doc_id": "tower"},
        {"text": "Neu!"},
        {"text": None},
        {"metadata": {"year": 1, "tags": ["b", "a"]}},
        {"metadata": {"year": 1}},
        {"metadata": None},
    ],
    "rag_doc_delete": [{"index_id": "berlin2"}, {"doc_id": "tower"}],
    "rag_index_delete": [{"index_id": "berlin2"}],
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_token_is_refused_for_other_arguments_tools_users_and_tenants(berlin: ToolUser, name: str) -> None:
    await berlin.harness.rag.writer.append(berlin.scope, IndexId("berlin2"), [NewDocument(id="gate", text="Das Tor.")])
    confirmed = await berlin.confirm(name, CALLS[name])
    before = await berlin.contents()
    for change in CHANGES[name]:
        with pytest.raises(ConfirmTokenInvalid):
            await berlin.call(name, {**confirmed, **change})
    for other in CALLS:
        if other != name:
            with pytest.raises(ConfirmTokenInvalid):
                await berlin.call(other, {**CALLS[other], "confirm_token": confirmed["confirm_token"]})
    bob = replace(berlin.scope, caller=replace(berlin.scope.caller, user=UserId("bob")))
    other_tenant = berlin.harness.scope_of("other")
    await berlin.harness.rag.writer.append(other_tenant, BERLIN, [NewDocument(id="gate", text="Das Tor.")])
    for stranger in (bob, replace(other_tenant, caller=replace(other_tenant.caller, user=UserId("ada")))):
        with pytest.raises(ConfirmTokenInvalid):
            await berlin.box.execute_direct(stranger, name, confirmed)
    assert await berlin.contents() == before
    reordered = dict(reversed(confirmed.items()))
    assert "error" not in await berlin.call(name, reordered)


@pytest.mark.parametrize("name", CALLS)
async def test_an_expired_token_and_a_wrong_one_get_different_errors(berlin: ToolUser, name: str) -> None:
    confirmed = await berlin.confirm(name, CALLS[name])
    before, later = await berlin.contents(), berlin.later()
    with pytest.raises(ConfirmTokenExpired):
        await later.call(name, confirmed)
    for wrong in ("", "yes", "x" * 72, f"{confirmed['confirm_token']}x", "ü"):
        with pytest.raises(ConfirmTokenInvalid):
            await later.call(name, {**confirmed, "confirm_token": wrong})
    assert await berlin.contents() == before


LONG = {"id": "long", "text": "x" * 8193}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rag_index_create", {"documents": [{"id": f"d{n}", "text": "x"} for n in range(257)]}, "too_many_documents"),
    ("rag_index_create", {"documents": [LONG]}, "document_too_large"),
    ("rag_index_create", {"documents": [{**GATE, "metadata": {"a": "x" * 2048}}]}, "document_too_large"),
    ("rag_index_create", {"documents": [GATE, GATE]}, "duplicate_document_id"),
    ("rag_doc_append", {"documents": [{"id": f"d{n}", "text": "x"} for n in range(257)]}, "too_many_documents"),
    ("rag_doc_append", {"documents": [LONG]}, "document_too_large"),
    ("rag_doc_append", {"documents": [GATE, GATE]}, "duplicate_document_id"),
    ("rag_doc_patch", {"text": "x" * 8193}, "document_too_large"),
    ("rag_doc_patch", {"metadata": {"a": "x" * 2048}}, "document_too_large"),
    ("rag_doc_patch", {"doc_id": "nothing"}, "document_not_found"),
    ("rag_doc_patch", {"index_id": "nothing"}, "index_not_found"),
    ("rag_doc_delete", {"doc_id": "nothing"}, "document_not_found"),
    ("rag_doc_delete", {"doc_id": "file.md#7"}, "document_not_found"),
    ("rag_doc_delete", {"index_id": "nothing"}, "index_not_found"),
    ("rag_index_delete", {"index_id": "nothing"}, "index_not_found"),
]


@pytest.mark.parametrize(("name", "change", "code"), REFUSED)
async def test_a_change_that_would_be_refused_gets_no_token(
    berlin: ToolUser, name: str, change: dict[str, Any], code: str
) -> None:
    arguments = {**CALLS[name], **change}
    if code.endswith("_not_found"):
        assert error_code(await berlin.call(name, arguments)) == code
    else:
        with pytest.raises(InvalidInput) as refused:
            await berlin.call(name, arguments)
        assert refused.value.code == code
        assert str(refused.value.param).split(".")[:2] == ["arguments", next(iter(change))]
    written = await berlin.box.execute(berlin.scope, ToolCall("c1", name, json.dumps(arguments)), allowed=[name])
    assert isinstance(written.result, dict)
    assert error_code(written.result) in {code, "invalid_arguments"}, "a model gets the same error"


async def test_no_token_for_a_change_that_the_embedding_model_cannot_make(berlin: ToolUser) -> None:
    other = toolbox_of(rag=berlin.harness.cold(config_with("another", 8)))
    calls: list[tuple[str, dict[str, Any], bool]] = [
        ("rag_doc_append", CALLS["rag_doc_append"], True),
        ("rag_doc_patch", CALLS["rag_doc_patch"], True),
        ("rag_doc_patch", {"index_id": "berlin", "doc_id": "gate", "metadata": {}}, False),
        ("rag_doc_patch", {"index_id": "berlin", "doc_id": "gate", "text": "Das Tor."}, False),
        ("rag_index_create", CALLS["rag_index_create"], False),
        ("rag_doc_delete", CALLS["rag_doc_delete"], False),
        ("rag_index_delete", CALLS["rag_index_delete"], False),
    ]
    for name, arguments, refused in calls:
        written = await other.execute(berlin.scope, ToolCall("c1", name, json.dumps(arguments)), allowed=[name])
        assert isinstance(written.result, dict)
        if refused:
            assert error_code(written.result) == "embedding_model_mismatch"
            with pytest.raises(EmbeddingModelMismatch):
                await other.execute_direct(berlin.scope, name, arguments)
        else:
            assert written.result["confirm_required"] is True, name
            assert not (await other.execute_direct(berlin.scope, name, arguments)).failed


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rag_doc_patch", {"index_id": "berlin", "doc_id": "gate"}),
        ("rag_doc_patch", {"index_id": "berlin", "doc_id": "gate", "text": " "}),
        ("rag_doc_patch", {"index_id": "berlin", "doc_id": "gate", "metadata": []}),
        ("rag_doc_append", {"index_id": "berlin", "documents": []}),
        ("rag_doc_append", {"index_id": "berlin", "documents": [{**GATE, "id": "file.md#1"}]}),
        ("rag_doc_append", {"index_id": "berlin", "documents": [{**GATE, "score": 1}]}),
        ("rag_index_delete", {"index_id": "../x"}),
        ("rag_index_delete", {"index_id": "berlin", "confirm_token": 7}),
        ("rag_doc_get", {"index_id": "berlin", "doc_id": "a#0"}),
        ("rag_doc_get", {"index_id": "berlin", "doc_id": f"a#{'1' * 127}"}),
        ("rag_doc_delete", {"index_id": "berlin", "doc_id": f"a#{'1' * 127}"}),
        ("rag_doc_list", {"index_id": "berlin", "limit": 0}),
        ("rag_index_list", {"limit": 1}),
    ],
)
async def test_invalid_arguments_are_refused(berlin: ToolUser, name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await berlin.call(name, arguments)


async def test_a_failed_write_does_not_use_its_token(berlin: ToolUser) -> None:
    confirmed = await berlin.confirm("rag_doc_append", CALLS["rag_doc_append"])
    valid = berlin.harness.calls.answer
    berlin.harness.calls.answer = await berlin.harness.calls.embed(berlin.scope, ["one vector for two texts"])
    with pytest.raises(UpstreamError):
        await berlin.call("rag_doc_append", confirmed)
    berlin.harness.calls.answer = valid
    assert (await berlin.call("rag_doc_append", confirmed))["version"] == 3

    patch = await berlin.confirm("rag_doc_patch", CALLS["rag_doc_patch"])
    await berlin.harness.rag.deleter.delete_document(berlin.scope, BERLIN, DocumentId("gate"))
    with pytest.raises(ConfirmTokenInvalid):
        await berlin.call("rag_doc_patch", patch)
    restored = NewDocument.model_validate(GATE)
    await berlin.harness.rag.writer.append(berlin.scope, BERLIN, [restored])
    assert (await berlin.call("rag_doc_patch", patch))["text"] == "Neu."


async def test_a_used_token_embeds_nothing(berlin: ToolUser) -> None:
    confirmed = await berlin.confirm("rag_doc_append", CALLS["rag_doc_append"])
    await berlin.call("rag_doc_append", confirmed)
    embedded = len(berlin.harness.calls.texts)
    with pytest.raises(ConfirmTokenInvalid):
        await berlin.call("rag_doc_append", confirmed)
    assert len(berlin.harness.calls.texts) == embedded


async def test_a_model_reads_why_its_token_was_refused(berlin: ToolUser) -> None:
    async def error_for(user: ToolUser, arguments: Mapping[str, Any]) -> tuple[str, str]:
        call = ToolCall("c1", "rag_doc_delete", json.dumps(arguments))
        result: Any = (await user.box.execute(berlin.scope, call, allowed=["rag_doc_delete"])).result
        return error_code(result), result["error"]["message"]

    confirmed = await berlin.confirm("rag_doc_delete", CALLS["rag_doc_delete"])
    code, message = await error_for(berlin, {**confirmed, "doc_id": "tower"})
    assert code == "confirm_token_invalid"
    assert "without confirm_token" in message
    code, message = await error_for(berlin.later(), confirmed)
    assert code == "confirm_token_expired"
    assert "without confirm_token" in message


async def test_indices_are_listed_and_described(berlin: ToolUser) -> None:
    described = await berlin.call("rag_index_describe", {"index_id": "berlin"})
    assert set(described) == {
        "id",
        "doc_count",
        "total_text_bytes",
        "embedding_model",
        "dimensions",
        "version",
        "created_at",
        "updated_at",
    }
    assert (described["id"], described["doc_count"], described["version"]) == ("berlin", 2, 2)
    assert await berlin.call("rag_index_list", {}) == {"indices": [described], "more": False}
    assert error_code(await berlin.call("rag_index_describe", {"index_id": "nothing"})) == "index_not_found"


async def test_a_document_is_read_whole(berlin: ToolUser) -> None:
    document = await berlin.call("rag_doc_get", {"index_id": "berlin", "doc_id": "gate"})
    assert set(document) == {"id", "text", "metadata", "created_at", "updated_at"}
    assert (document["id"], document["text"], document["metadata"]) == ("gate", "Das Tor.", {"year": 1788})
    assert error_code(await berlin.call("rag_doc_get", {"index_id": "berlin", "doc_id": "file.md#1"})) == "document_not_found"
    await berlin.harness.rag.writer.append(berlin.scope, BERLIN, [NewDocument(id="worst", text="x" + "\x01" * 8191)])
    worst = await berlin.call("rag_doc_get", {"index_id": "berlin", "doc_id": "worst"})
    assert worst["text"] == "x" + "\x01" * 8191


async def test_a_long_query_result_omits_whole_passages(tool_user: ToolUser) -> None:
    await tool_user.harness.rag.writer.append(
        tool_user.scope, BERLIN, [NewDocument(id=f"d{n:02}", text='\x01"\n' * 900) for n in range(20)]
    )
    answer = await tool_user.call("rag_query", {"index_id": "berlin", "query": "x", "top_k": 20})
    assert set(answer) == {"index_id", "version", "results", "omitted"}
    assert len(answer["results"]) + answer["omitted"] == 20
    assert len(answer["results"]) > 1


async def test_documents_are_listed_in_pages_within_the_result_limit(tool_user: ToolUser) -> None:
    texts = {f"d{n:02}": ("kurz", "\x01x" * 500, "ü" * 1001, "x" * 8192)[n % 4] for n in range(40)}
    documents = [NewDocument(id=name, text=text, metadata={"m": "y" * 1000}) for name, text in texts.items()]
    await tool_user.harness.rag.writer.append(tool_user.scope, BERLIN, documents)
    seen: dict[str, str] = {}
    cursor, pages = None, 0
    while cursor or not pages:
        page = await tool_user.call("rag_doc_list", {"index_id": "berlin", "limit": 30, "cursor": cursor})
        assert len(json.dumps(page, ensure_ascii=False).encode()) < MAX_RESULT_BYTES
        assert 0 < len(page["documents"]) < 30
        for document in page["documents"]:
            text = texts[document["id"]]
            assert document["text"] == text[:1000]
            assert document["text_truncated"] is (len(text) > 1000)
            assert document["text_size_bytes"] == len(text.encode())
            seen[document["id"]] = document["text"]
        cursor, pages = page["next_cursor"], pages + 1
    assert list(seen) == list(texts)
    few = await tool_user.call("rag_doc_list", {"index_id": "berlin", "limit": 2})
    assert [document["id"] for document in few["documents"]] == ["d00", "d01"]
    with pytest.raises(InvalidRequest) as foreign:
        await tool_user.call("rag_doc_list", {"index_id": "berlin", "cursor": "made up"})
    assert foreign.value.param == "arguments.cursor"


@pytest.mark.parametrize("name", ["rag_query", "rag_index_list", "rag_index_describe", "rag_doc_list", "rag_doc_get"])
def test_a_tool_that_reads_has_the_timeout_of_a_query(name: str) -> None:
    assert load_tool(name).timeout == 60


async def test_a_query_of_an_absent_index_names_those_of_the_tenant(berlin: ToolUser) -> None:
    error = (await berlin.call("rag_query", {"index_id": "Berlin-Info", "query": "Tor?"}))["error"]
    assert error["code"] == "index_not_found"
    assert error["message"] == "There is no index 'Berlin-Info'. Use one of: berlin."
    for number in range(25):
        await berlin.harness.rag.writer.append(berlin.scope, IndexId(f"z{number:02}"), [NewDocument(id="d", text="x")])
    many = (await berlin.call("rag_query", {"index_id": "absent", "query": "Tor?"}))["error"]["message"]
    assert many.endswith("Use one of: berlin, " + ", ".join(f"z{number:02}" for number in range(19)) + " and others.")
    other_tenant = berlin.harness.scope_of("other")
    found = (await berlin.box.execute_direct(other_tenant, "rag_query", {"index_id": "berlin", "query": "Tor?"})).body.result
    assert isinstance(found, dict)
    assert found["error"] == {
        "code": "index_not_found",
        "message": "There is no index 'berlin'. There is none yet, so answer without one.",
    }


async def test_another_tenants_index_is_not_found(berlin: ToolUser) -> None:
    other_tenant = berlin.harness.scope_of("other")
    assert (await berlin.box.execute_direct(other_tenant, "rag_index_list", {})).body.result == {"indices": [], "more": False}
    calls: dict[str, dict[str, Any]] = {
        "rag_index_describe": {"index_id": "berlin"},
        "rag_doc_list": {"index_id": "berlin"},
        "rag_doc_get": {"index_id": "berlin", "doc_id": "gate"},
        **{name: CALLS[name] for name in ("rag_doc_patch", "rag_doc_delete", "rag_index_delete")},
    }
    for name, arguments in calls.items():
        assert error_code((await berlin.box.execute_direct(other_tenant, name, arguments)).body.result) == "index_not_found", name


async def test_a_chunk_of_an_ingested_file_can_be_changed_and_deleted(tool_user: ToolUser) -> None:
    document = NewDocument.model_construct(id="guide.md#12", text="Kapitel 12.", metadata={"source": "guide.md"})
    await tool_user.harness.rag.writer.append(tool_user.scope, BERLIN, [document])
    chunk = {"index_id": "berlin", "doc_id": "guide.md#12"}
    assert (await tool_user.call("rag_doc_get", chunk))["text"] == "Kapitel 12."
    patched = await tool_user.call("rag_doc_patch", await tool_user.confirm("rag_doc_patch", {**chunk, "text": "Kapitel zwölf."}))
    assert (patched["id"], patched["text"], patched["metadata"]) == ("guide.md#12", "Kapitel zwölf.", {"source": "guide.md"})
    assert await tool_user.call("rag_doc_delete", await tool_user.confirm("rag_doc_delete", chunk)) == {"deleted": True}
