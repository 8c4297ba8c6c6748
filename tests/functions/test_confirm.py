"""Two-step tools over HTTP: previews, confirm tokens and replays."""

from collections.abc import Mapping
from functools import partial

import pytest

from spass.core.errors import StorageUnavailable
from spass.core.time import now_s
from spass.store.idempotency import Claim, StoredResponse
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import gateway_toolsets
from tests.functions.gateway import Gateway, Reply

EXECUTE = "/v1/tools/execute"
NOTES = "/a1/rag/indices/notes"
DELETE = {"index_id": "notes", "doc_id": "a"}


def body(name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


@pytest.fixture
def confirmed(gateway: Gateway) -> dict[str, object]:
    """Return the arguments of a deletion, with its token."""
    documents = [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]
    assert gateway.send("POST", f"{NOTES}/documents", body={"documents": documents}).status == 200
    preview = gateway.send("POST", EXECUTE, body=body("rag_doc_delete", DELETE))
    assert preview.status == 200
    result = preview.json["result"]
    assert result["confirm_required"] is True
    assert result["preview"]["text_excerpt"] == "alpha"
    assert gateway.send("GET", f"{NOTES}/documents/a").status == 200
    return {**DELETE, "confirm_token": result["confirm_token"]}


def test_the_second_call_executes_and_the_third_is_refused(gateway: Gateway, confirmed: dict[str, object]) -> None:
    assert gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed)).json["result"] == {"deleted": True}
    assert gateway.send("GET", f"{NOTES}/documents/a").code == "document_not_found"
    third = gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed))
    assert (third.status, third.code) == (409, "confirm_token_invalid")
    assert third.json["error"]["param"] == "arguments.confirm_token"


def test_a_token_is_refused_for_another_call_user_or_tenant(gateway: Gateway, confirmed: dict[str, object]) -> None:
    for changed in ({"doc_id": "b"}, {"confirm_token": "yes"}, {"confirm_token": ""}):
        assert gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed | changed)).code == "confirm_token_invalid"
    bob = gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed), headers={"SPASS-User-Id": "bob"})
    other = gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed), token="other-token")
    assert {(reply.status, reply.code) for reply in (bob, other)} == {(409, "confirm_token_invalid")}
    assert gateway.send("GET", f"{NOTES}/documents/a").status == 200


def set_clock(gateway: Gateway, now: int) -> None:
    """Let the confirm tokens of ``gateway`` read ``now`` from their clock."""
    services = gateway.services
    services.toolbox = Toolbox(partial(gateway_toolsets, services), clock=lambda: now)


def test_an_expired_token_has_its_own_error_code(gateway: Gateway, confirmed: dict[str, object]) -> None:
    set_clock(gateway, now_s() + 62)
    reply = gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed))
    assert (reply.status, reply.code) == (409, "confirm_token_expired")


def test_an_idempotency_key_replays_the_execution_but_not_a_refusal(gateway: Gateway, confirmed: dict[str, object]) -> None:
    keyed = {"Idempotency-Key": "once"}
    first, replay = (gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed), headers=keyed) for _ in range(2))
    assert first.json == replay.json
    assert replay.headers["idempotency-replayed"] == "true"
    refused = [
        gateway.send("POST", EXECUTE, body=body("rag_doc_delete", confirmed), headers={"Idempotency-Key": "two"}) for _ in "ab"
    ]
    assert [reply.code for reply in refused] == ["confirm_token_invalid"] * 2


def delete_keyed(gateway: Gateway, **more: object) -> Reply:
    return gateway.send("POST", EXECUTE, body=body("rag_doc_delete", {**DELETE, **more}), headers={"Idempotency-Key": "first"})


def stored_text(gateway: Gateway) -> str:
    """Return the items of the table and the objects of the bucket as text."""
    return str(gateway.items()) + str(gateway.objects())


@pytest.mark.usefixtures("confirmed")
def test_a_preview_is_replayed_although_its_token_is_not_stored(gateway: Gateway) -> None:
    first, replay = (delete_keyed(gateway) for _ in "ab")
    assert replay.json == first.json
    assert [reply.headers.get("idempotency-replayed") for reply in (first, replay)] == [None, "true"]
    token = replay.json["result"]["confirm_token"]
    assert '"confirm_required":true' in stored_text(gateway).replace(" ", "")
    assert token not in stored_text(gateway)
    other = gateway.send("POST", EXECUTE, body=body("rag_doc_delete", {**DELETE, "confirm_token": token}))
    assert other.json["result"] == {"deleted": True}


@pytest.mark.usefixtures("confirmed")
def test_a_preview_is_not_replayed_after_its_token_has_expired(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    first, issued = delete_keyed(gateway), now_s()
    reply = first
    for seconds, replayed in ((50, "true"), (62, None), (110, "true")):
        set_clock(gateway, issued + seconds)
        for module in ("spass.store.idempotency", "spass.store.table"):
            monkeypatch.setattr(f"{module}.now_s", lambda at=issued + seconds: at)
        reply = delete_keyed(gateway)
        assert reply.headers.get("idempotency-replayed") == replayed, seconds
        assert (reply.json["result"] == first.json["result"]) is (seconds == 50)
        assert reply.json["result"]["confirm_required"] is True
    assert gateway.send("GET", f"{NOTES}/documents/a").status == 200
    confirmed = body("rag_doc_delete", {**DELETE, "confirm_token": reply.json["result"]["confirm_token"]})
    assert gateway.send("POST", EXECUTE, body=confirmed).json["result"] == {"deleted": True}


@pytest.mark.usefixtures("confirmed")
def test_the_idempotency_key_of_a_preview_is_refused_for_the_execution(gateway: Gateway) -> None:
    token = delete_keyed(gateway).json["result"]["confirm_token"]
    assert delete_keyed(gateway, confirm_token=token).code == "idempotency_key_reused"


WRITES: list[tuple[str, dict[str, object]]] = [
    ("rag_index_create", {"documents": [{"id": "c", "text": "gamma"}]}),
    ("rag_doc_append", {"documents": [{"id": "c", "text": "gamma"}]}),
    ("rag_doc_patch", {"doc_id": "a", "text": "gamma"}),
    ("rag_doc_delete", {"doc_id": "a"}),
    ("rag_index_delete", {}),
]


@pytest.mark.usefixtures("confirmed")
@pytest.mark.parametrize(("name", "arguments"), WRITES)
def test_a_repeated_execution_gets_the_lost_answer(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, object]
) -> None:
    """The change and its answer under the key are written in one transaction."""
    arguments = {"index_id": "notes", **arguments}
    preview = gateway.send("POST", EXECUTE, body=body(name, arguments))
    call = body(name, {**arguments, "confirm_token": preview.json["result"]["confirm_token"]})

    async def fail(self: Claim, answer: StoredResponse) -> None:
        raise StorageUnavailable("The storage did not answer in time; try again.")

    with monkeypatch.context() as patch:
        patch.setattr(Claim, "complete", fail)
        first = gateway.send("POST", EXECUTE, body=call, headers={"Idempotency-Key": name})
    replay = gateway.send("POST", EXECUTE, body=call, headers={"Idempotency-Key": name})
    assert (first.status, replay.status) == (200, 200)
    assert replay.json == first.json
    assert replay.headers["idempotency-replayed"] == "true"
    assert replay.headers.get("spass-cost-usd") == first.headers.get("spass-cost-usd")


def test_a_token_without_the_right_to_embed_gets_no_preview_of_an_embedding(gateway: Gateway) -> None:
    documents = [{"id": "a", "text": "alpha"}]
    assert gateway.send("POST", f"{NOTES}/documents", body={"documents": documents}).status == 200
    calls: list[tuple[str, dict[str, object], bool]] = [
        ("rag_index_create", {"documents": documents}, True),
        ("rag_doc_append", {"documents": documents}, True),
        ("rag_doc_patch", {"doc_id": "a", "text": "beta"}, True),
        ("rag_doc_patch", {"doc_id": "a", "text": "alpha"}, False),
        ("rag_doc_patch", {"doc_id": "a", "metadata": {"checked": True}}, False),
        ("rag_doc_delete", {"doc_id": "a"}, False),
        ("rag_index_delete", {}, False),
    ]
    for name, arguments, refused in calls:
        reply = gateway.send("POST", EXECUTE, token="chat-only-token", body=body(name, {"index_id": "notes", **arguments}))
        result = reply.json["result"]
        assert ("confirm_token" in result) is not refused, (name, arguments)
        if refused:
            assert result["error"]["code"] == "model_not_allowed"
            assert "spass-cost-usd" not in reply.headers


@pytest.mark.usefixtures("confirmed")
def test_a_missing_index_or_document_is_an_error_result(gateway: Gateway) -> None:
    calls: list[tuple[str, dict[str, object], str]] = [
        ("rag_doc_get", {"index_id": "nothing", "doc_id": "a"}, "index_not_found"),
        ("rag_index_delete", {"index_id": "nothing"}, "index_not_found"),
        ("rag_doc_delete", {"index_id": "notes", "doc_id": "nothing"}, "document_not_found"),
    ]
    for name, arguments, code in calls:
        reply = gateway.send("POST", EXECUTE, body=body(name, arguments))
        assert (reply.status, reply.json["result"]["error"]["code"]) == (200, code)


def documents_of(count: int) -> list[dict[str, object]]:
    return [{"id": f"d{number}", "text": "x"} for number in range(count)]


WRONG: list[tuple[str, dict[str, object], str, str]] = [
    ("rag_doc_append", {"documents": documents_of(257)}, "too_many_documents", "arguments.documents"),
    ("rag_index_create", {"documents": [{"id": "a", "text": "x" * 8193}]}, "document_too_large", "arguments.documents.0.text"),
    ("rag_doc_patch", {"doc_id": "a", "metadata": {"a": "x" * 2048}}, "document_too_large", "arguments.metadata"),
    ("rag_doc_append", {"documents": documents_of(1) * 2}, "duplicate_document_id", "arguments.documents.1.id"),
    ("rag_doc_list", {"cursor": "of another list"}, "invalid_request", "arguments.cursor"),
    ("rag_doc_list", {"limit": 0}, "invalid_request", "arguments.limit"),
    ("rag_doc_patch", {"doc_id": "a"}, "invalid_request", "arguments"),
]


@pytest.mark.usefixtures("confirmed")
@pytest.mark.parametrize(("name", "arguments", "code", "param"), WRONG)
def test_an_invalid_request_is_a_400_with_the_path_of_the_argument(
    gateway: Gateway, name: str, arguments: dict[str, object], code: str, param: str
) -> None:
    replies = [
        gateway.send("POST", EXECUTE, body=body(name, {"index_id": "notes", **arguments}), headers={"Idempotency-Key": "k"})
        for _ in "ab"
    ]
    assert [(reply.status, reply.code, reply.json["error"]["param"]) for reply in replies] == [(400, code, param)] * 2
