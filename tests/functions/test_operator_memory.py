"""What an operator keeps over its runs, as its model and its owner see it, and how it is forgotten."""

from typing import Any

import pytest

from spass.testing.model import calls, in_turn
from tests.functions.gateway import Gateway, Reply
from tests.functions.operator_runs import add_operators, chat, history, session_items, shown

OPERATOR = "/v1/operators/harbour"
HARBOUR = """
name: harbour
kind: operative
model: small
system_prompt: Watch the harbour.
tools: [memory_store, memory_search]
"""


@pytest.fixture
def harbour(gateway: Gateway) -> Gateway:
    return add_operators(gateway, harbour=HARBOUR)


def owner(user: str = "ada") -> dict[str, str]:
    """Return the header that names the user of a route that also works without one."""
    return {"SPASS-User-Id": user}


def store(content: str, key: str | None = None) -> tuple[str, dict[str, Any]]:
    return "memory_store", {"content": content, **({"key": key} if key is not None else {})}


def search(query: str) -> tuple[str, dict[str, Any]]:
    return "memory_search", {"query": query}


def run(gateway: Gateway, *tools: tuple[str, dict[str, Any]], user: str = "ada") -> list[Any]:
    """Run the agent, whose model makes the calls ``tools``. Return their results."""
    gateway.model.script = in_turn([calls(*tools), "Done."])
    reply = chat(gateway, "What came in?", "harbour", user=user)
    assert reply.status == 200, reply.text
    return [call["result"] for call in reply.json["tool_calls"]]


def notes(gateway: Gateway, user: str = "ada") -> list[tuple[str, str]]:
    """Return keys and contents of the notes of the operator."""
    page = gateway.send("GET", f"{OPERATOR}/notes", headers=owner(user))
    assert page.status == 200, page.text
    return sorted((note["key"], note["content"]) for note in page.json["notes"])


def test_a_later_run_finds_the_notes_of_an_earlier_one(harbour: Gateway) -> None:
    stored = run(harbour, store("The Anna carries tea.", "anna"), store("The Berta carries coal."))
    assert stored[0] == {"key": "anna"}
    (found,) = run(harbour, search("tea"))
    assert {note["content"] for note in found["results"]} == {"The Anna carries tea.", "The Berta carries coal."}
    assert found["results"][0]["key"] == "anna"
    assert "The Anna carries tea." in shown(harbour)[-1]
    assert notes(harbour) == sorted([("anna", "The Anna carries tea."), (stored[1]["key"], "The Berta carries coal.")])
    operator = harbour.send("GET", OPERATOR, headers=owner())
    session = session_items(harbour)
    assert [operator.json["operator_id"], operator.json["session_id"], operator.json["notes"]] == ["harbour", *session, 2]
    assert operator.json["state"].keys() == {"input", "answer", "at"}


@pytest.mark.parametrize("key", ["state", " state\u2003"])
def test_the_state_that_the_model_stored_is_shown_and_is_not_a_note(harbour: Gateway, key: str) -> None:
    (result,) = run(harbour, store("Two ships wait.", key))
    assert result == {"key": "state"}
    assert harbour.send("GET", OPERATOR, headers=owner()).json["state"] == "Two ships wait."
    assert notes(harbour) == []


def test_notes_are_those_of_one_user_and_one_operator(harbour: Gateway) -> None:
    run(harbour, store("Ada's secret."))
    (found,) = run(harbour, search("secret"), user="eve")
    assert found == {"results": []}
    assert not [text for text in shown(harbour) if "Ada's" in text]
    assert notes(harbour, user="eve") == []
    strangers: list[dict[str, Any]] = [
        {"headers": owner("bob")},
        {"headers": {}},
        {"headers": owner(), "token": "other-token"},
        {"headers": owner(), "token": "sibling-token"},
    ]
    for caller in strangers:
        for path in (OPERATOR, f"{OPERATOR}/notes"):
            refused = harbour.send("GET", path, **caller)
            assert refused.code == "operator_not_found"
            assert "SPASS-User-Id" in refused.json["error"]["message"]
        assert harbour.send("DELETE", OPERATOR, **caller).json == {"deleted": False}
    for operator in ("harbou", "harbour2", "harbour:1", "Harbour"):
        assert harbour.send("GET", f"/v1/operators/{operator}", headers=owner()).code == "operator_not_found"
    assert [content for _, content in notes(harbour)] == ["Ada's secret."]


def test_a_forgotten_operator_begins_another_session_without_state_and_notes(harbour: Gateway) -> None:
    run(harbour, store("The Anna carries tea."))
    before = harbour.send("GET", OPERATOR, headers=owner()).json["session_id"]
    assert harbour.send("DELETE", OPERATOR, headers=owner()).json == {"deleted": True}
    assert harbour.send("GET", OPERATOR, headers=owner()).code == "operator_not_found"
    assert harbour.send("DELETE", OPERATOR, headers=owner()).json == {"deleted": False}
    (found,) = run(harbour, search("tea"))
    assert found == {"results": []}
    assert not [text for text in shown(harbour) if "Anna" in text or "## Previous state" in text]
    after = harbour.send("GET", OPERATOR, headers=owner()).json
    assert (after["notes"], after["session_id"] != before) == (0, True)
    assert history(harbour, before, "harbour")[0] == ("user", "What came in?"), "the old session stays"


def test_an_operator_is_not_forgotten_during_its_run(harbour: Gateway) -> None:
    run(harbour, store("The Anna carries tea."))
    seen: list[Reply] = []

    async def forget() -> None:
        if not seen:
            seen.append(await harbour.send_async("DELETE", OPERATOR, headers=owner()))

    harbour.model.before_chat = forget
    run(harbour, store("The Berta carries coal."))
    assert [reply.code for reply in seen] == ["session_busy"]
    assert len(notes(harbour)) == 2


def test_notes_are_kept_although_the_token_may_not_embed(harbour: Gateway) -> None:
    harbour.model.script = in_turn(
        [calls(store("The Anna carries tea.")), "Done.", calls(search("tea"), search("drink")), "Done."]
    )
    assert chat(harbour, "Store.", "harbour", token="chat-only-token").status == 200
    by_word, by_meaning = chat(harbour, "Search.", "harbour", token="chat-only-token").json["tool_calls"]
    assert [note["content"] for note in by_word["result"]["results"]] == ["The Anna carries tea."]
    assert by_meaning["result"] == {"results": []}


@pytest.mark.parametrize("name", ["memory_store", "memory_search"])
def test_over_http_and_for_other_agents_the_tools_answer_no_operator(harbour: Gateway, name: str) -> None:
    arguments = {"content": "x"} if name == "memory_store" else {"query": "x"}
    reply = harbour.send("POST", "/v1/tools/execute", body={"name": name, "arguments": arguments})
    assert (reply.status, reply.json["result"]["error"]["code"]) == (200, "no_operator")
    harbour.model.script = in_turn([calls((name, arguments)), "I cannot."])
    asked = harbour.send("POST", "/v1/ask", body={"input": "Store it.", "agent": "orchestrator", "tools": [name]})
    (result,) = asked.json["tool_results"]
    assert (result["success"], "no_operator" in result["content"]) == (False, True)


def test_an_operator_id_of_other_characters_is_refused(harbour: Gateway) -> None:
    for operator in ("a%23b", "a%20b", "x" * 65, "%C3%BC"):
        for method, path in (("GET", ""), ("GET", "/notes"), ("DELETE", "")):
            assert harbour.send(method, f"/v1/operators/{operator}{path}").code == "invalid_request"
