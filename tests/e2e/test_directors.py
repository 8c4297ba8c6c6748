"""Chats with the directors of a started gateway: the stand-in answers, and Aider edits."""

import io
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from local.example_workspace import FILES
from tests.e2e.conftest import Gateway
from tests.stream_grammar import Event, answer_text, of_type, parse_events

MODEL: Final = "ollama/qwen2.5-coder:7b-instruct"
DIRECTORS: Final = ["architect", "dir-code", "dir-models", "dir-data", "dir-devsecops", "dir-docs"]


class Walk:
    """Chats of one session with each director, in a workspace of their own."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.name = f"walk-{uuid4()}"
        self.workspace = f"/a1/workspaces/{self.name}"
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as archive:
            for path, text in FILES.items():
                archive.writestr(path, text)
        headers = {"Content-Type": "application/zip"}
        client.put(f"{self.workspace}/archive", content=body.getvalue(), headers=headers).raise_for_status()

    def ask(self, director: str, question: str, **more: object) -> list[Event]:
        body = {"message_id": f"m-{uuid4()}", "session_id": self.name, "messages": [{"role": "user", "content": question}]}
        return self._events(f"/c1/agents/{director}/chat", body | more)

    def send_card(self, director: str, **card: object) -> list[Event]:
        return self._events(f"/c1/agents/{director}/job_card", card)

    def _events(self, path: str, body: dict[str, Any]) -> list[Event]:
        answer = self.client.post(path, json={"workspace": self.name} | body)
        return parse_events(answer.raise_for_status().text)

    def read(self, path: str) -> str:
        return self.client.get(f"{self.workspace}/file", params={"path": path}).raise_for_status().text


@pytest.fixture
def walk(gateway: Gateway) -> Iterator[Walk]:
    with gateway.client() as client:
        walk = Walk(client)
        yield walk
        client.delete(walk.workspace).raise_for_status()


def calls(events: list[Event], tool: str) -> list[Event]:
    return [event for event in of_type(events, "tool_call") if event["tool"] == tool]


@pytest.mark.parametrize("director", DIRECTORS)
def test_each_director_answers_what_is_in_the_files(walk: Walk, director: str) -> None:
    events = walk.ask(director, "What files are in src/?")
    (listed,) = of_type(events, "tool_call")
    assert (listed["tool"], listed["rich"][0]["kind"]) == ("list_directory", "file_tree")
    assert "src/main.py" in answer_text(events)


def test_a_function_is_found_documented_and_restored(walk: Walk) -> None:
    events = walk.ask("dir-code", "Add a docstring to main()")
    (edit,) = calls(events, "aider_edit")
    assert [block["kind"] for block in edit["rich"]] == ["diff"]
    assert '    """Run the program."""\n' in walk.read("src/main.py")
    newest, first = walk.client.get(f"{walk.workspace}/versions").json()["versions"]
    assert newest["run_id"].startswith("turn_")
    audit = walk.client.get(f"/v1/audit/{events[0]['request_id']}").raise_for_status().json()["calls"]
    (call,) = [one for one in audit if one["request_id"] == newest["parent_log_id"]]
    assert (call["tool"], [one["kind"] for one in call["calls"]]) == ("aider_edit", ["chat"])
    walk.client.post(f"{walk.workspace}/restore", json={"version": first["version"]}).raise_for_status()
    assert walk.read("src/main.py") == FILES["src/main.py"]
    (read,) = of_type(walk.ask("dir-code", "What's in src/main.py?"), "tool_call")
    assert [(block["kind"], block["text"]) for block in read["rich"]] == [("file", FILES["src/main.py"])]


def test_a_job_card_is_done_like_the_message_rendered_from_it(walk: Walk) -> None:
    events = walk.send_card("dir-code", title="Document", task="Add a docstring to greet()", files=["src/util.py"])
    (edit,) = calls(events, "aider_edit")
    assert edit["args"]["files"] == ["src/util.py"]
    assert walk.read("src/util.py") == FILES["src/util.py"].replace("str:\n", 'str:\n    """Greet."""\n')


def test_the_architect_delegates_to_three_directors_of_whom_one_waits(walk: Walk) -> None:
    question = (
        "Ask the code director to add a docstring to main() in src/main.py, the docs director to create docs/release.md, "
        "and the devsecops director to create infra/main.tf"
    )
    events = walk.ask("architect", question)
    delegates = {event["id"]: event["args"]["agent"] for event in calls(events, "delegate")}
    edits = {event["agent"]: event for event in calls(events, "aider_edit")}
    assert {*edits} == {*delegates.values()} == {"dir-code", "dir-docs", "dir-devsecops"}
    assert all(delegates[edit["parent_id"]] == agent for agent, edit in edits.items())
    (approval,) = of_type(events, "approval")
    assert (approval["approval"]["agent"], approval["approval"]["status"]) == ("dir-devsecops", "pending")
    paths = [entry["path"] for entry in walk.client.get(f"{walk.workspace}/tree").json()["entries"]]
    assert "docs/release.md" in paths
    assert "infra/main.tf" not in paths
    decided = walk.client.post(f"/a1/approvals/{approval['approval']['id']}", json={"decision": "approve"})
    assert decided.json()["status"] == "executed"
    assert walk.read("infra/main.tf") == "# Main\n"

    (usage,) = of_type(events, "usage")
    audit = walk.client.get(f"/v1/audit/{events[0]['request_id']}").raise_for_status().json()["calls"]
    chats = [call for call in _flat(audit) if call["kind"] == "chat"]
    assert usage["usage"]["total_tokens"] == sum(call["prompt_tokens"] + call["completion_tokens"] for call in chats)
    assert Decimal(usage["cost"]["usd"]) == sum(Decimal(call["cost_usd"]) for call in chats)
    assert len(chats) == usage["cost"]["sub_calls"] == 2 + 3 * 3


def _flat(tree: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for call in tree:
        yield call
        yield from _flat(call["calls"])


def test_the_directors_model_is_a_model_of_the_gateway(gateway: Gateway) -> None:
    with gateway.client() as client:
        listed = {model["id"] for model in client.get("/v1/models").json()["data"]}
        assert {MODEL, *(f"agent/{director}" for director in DIRECTORS)} <= listed
        for name in (MODEL, MODEL.replace("/", "%2F")):
            assert client.get(f"/v1/models/{name}").json()["id"] == MODEL
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Mein Sport ist Tennis. Was ist mein Sport?"}]}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert "Tennis" in answer["choices"][0]["message"]["content"]


def test_a_new_gateway_has_the_example_for_the_tenant_demo(gateway: Gateway) -> None:
    with gateway.client() as client:
        (first,) = [one for one in client.get("/a1/workspaces/default/versions").json()["versions"] if one["version"] == 1]
        assert (first["added"], first["user"]) == (len(FILES), "make-run")
    with gateway.client("other-token") as client:
        assert client.get("/a1/workspaces/default").status_code == 404
