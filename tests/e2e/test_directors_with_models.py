"""The directors of a started gateway with models of their providers: scripted servers in Ollama's and in Anthropic's form."""

import asyncio
import os
import re
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import boto3
import httpx
import pytest
from openai import OpenAI

from local.example_workspace import FILES
from spass.aws.clients import Aws
from spass.core.ids import TenantId
from spass.core.time import Deadline
from spass.testing.http_server import serve
from spass.workspaces.sweep import sweep_workspaces
from tests.e2e.conftest import ROOT, Gateway
from tests.e2e.scripted_directors import DOCSTRING, OLLAMA_NAME, ModelRequest, ScriptedModel
from tests.functions.workspace_client import ARCHIVE, pack
from tests.stream_grammar import Event, answer_text, of_type, parse_events

REGION: Final = "eu-central-1"
MODELS: Final = {"ollama": None, "anthropic": "claude-haiku-4.5"}
"""A model for each form. Without one, the chat's model is the agent's own."""
BACKEND_NAMES: Final = {"ollama": OLLAMA_NAME, "anthropic": "claude-haiku-4-5"}
DOCUMENTED: Final = FILES["src/main.py"].replace("-> None:\n", f"-> None:\n{DOCSTRING}")
TWO_HOURS: Final = 7200
_OF_ONE_TURN: Final = {"request_id", "session_id", "message_id", "duration_ms", "message"}


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture(scope="module")
def gateway(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The shipped configuration, whose Ollama and Anthropic are the scripted server. Its Aider is the real one."""
    folder = tmp_path_factory.mktemp("directors")
    with serve(model.respond) as url:
        config = (ROOT / "gateway.yaml").read_text()
        (folder / "gateway.yaml").write_text(
            config.replace("provider: anthropic\n", f"provider: anthropic\n      base_url: {url}\n")
        )
        environment = {
            "SPASS_CONFIG": str(folder / "gateway.yaml"),
            "OLLAMA_BASE_URL": url,
            "ANTHROPIC_API_KEY": "a-key-of-the-test",
        }
        gateway = Gateway(folder / "home", environment=environment)
        gateway.start()
        yield gateway
        gateway.stop()


class Person:
    """A user who chats in one session with each director, about a workspace of her own."""

    def __init__(self, client: httpx.Client, model: ScriptedModel, name: str) -> None:
        self.client = client
        self.model = model
        self.name = name
        self.workspace = f"/a1/workspaces/{name}"
        self._numbers = iter(range(1000))
        client.put(f"{self.workspace}/archive", content=pack(FILES), headers=ARCHIVE).raise_for_status()

    def chat(self, director: str, question: str, *, model: str | None = None) -> list[Event]:
        body: dict[str, Any] = {"message_id": f"{self.name}-{next(self._numbers)}", "session_id": self.name}
        body |= {"workspace": self.name, "model": model, "messages": [{"role": "user", "content": question}]}
        return self._events(director, "chat", body)

    def send_card(self, director: str, **card: object) -> list[Event]:
        return self._events(director, "job_card", {"workspace": self.name, **card})

    def _events(self, director: str, route: str, body: dict[str, Any]) -> list[Event]:
        answer = self.client.post(f"/c1/agents/{director}/{route}", json=body)
        assert answer.status_code == 200, answer.text
        return parse_events(answer.text)

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def put(self, path: str, body: bytes) -> Any:
        headers = {"Content-Type": "application/octet-stream"}
        answer = self.client.put(f"{self.workspace}/file", params={"path": path}, content=body, headers=headers)
        return answer.raise_for_status().json()

    def read(self, path: str) -> str:
        return self.client.get(f"{self.workspace}/file", params={"path": path}).raise_for_status().text

    def asked(self, question: str) -> list[ModelRequest]:
        """Return the requests in which the model read this question last, without Aider's."""
        return [one for one in self.model.requests if one.question == question and not one.is_from_aider]


@pytest.fixture
def person(gateway: Gateway, model: ScriptedModel, request: pytest.FixtureRequest) -> Iterator[Person]:
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[:60].lower()
    with gateway.client(user=f"user-of-{name}") as client:
        model.requests.clear()
        yield Person(client, model, name)


def calls(events: Sequence[Event], tool: str | None = None) -> list[Event]:
    return [event for event in of_type(events, "tool_call") if tool in (None, event["tool"])]


def flatten(tree: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in tree:
        yield one
        yield from flatten(one["calls"])


def comparable(events: Sequence[Event]) -> list[Event]:
    """Return the events without ids, times and counts of a turn."""
    numbers: dict[str, str] = {}

    def rename(event: Event) -> Event:
        kept = {key: value for key, value in event.items() if key not in _OF_ONE_TURN}
        for key in ("id", "tool_call_id"):
            if key in kept:
                kept[key] = numbers.setdefault(kept[key], f"call {len(numbers)}")
        return {key: rename(value) if key == "tool_call" else value for key, value in kept.items()}

    return [rename(event) for event in events]


@pytest.mark.parametrize("form", MODELS)
def test_a_director_lists_reads_edits_and_is_taken_back(person: Person, form: str) -> None:
    (listed,) = calls(person.chat("dir-code", "What files are in src/?", model=MODELS[form]))
    assert listed["tool"] == "list_directory"
    assert [(block["kind"], [entry["path"] for entry in block["entries"]]) for block in listed["rich"]] == [
        ("file_tree", ["src/main.py", "src/util.py"])
    ]
    (read,) = calls(person.chat("dir-code", "What's in src/main.py?", model=MODELS[form]))
    assert [(block["kind"], block["text"]) for block in read["rich"]] == [("file", FILES["src/main.py"])]
    events = person.chat("dir-code", "Add a docstring to main()", model=MODELS[form])
    (edit,) = calls(events)
    assert (edit["tool"], edit["ok"], edit["result"]["version"]) == ("aider_edit", True, 2)
    (diff,) = edit["rich"]
    assert (diff["kind"], diff["path"], diff["added"], diff["removed"]) == ("diff", "src/main.py", 1, 0)
    assert f"+{DOCSTRING}" in diff["unified"]
    assert diff["unified"] == person.get(f"{person.workspace}/diff")["files"][0]["unified"]
    assert person.read("src/main.py") == DOCUMENTED

    newest, first = person.get(f"{person.workspace}/versions")["versions"]
    assert newest["run_id"].startswith("turn_")
    assert (newest["session_id"], newest["message_id"]) == (events[0]["session_id"], events[0]["message_id"])
    audit = person.get(f"/v1/audit/{events[0]['request_id']}")["calls"]
    (edited,) = [one for one in audit if one["request_id"] == newest["parent_log_id"]]
    assert (edited["tool"], [one["model"] for one in edited["calls"]]) == ("aider_edit", [of_type(events, "done")[0]["model"]])
    person.client.post(f"{person.workspace}/restore", json={"version": first["version"]}).raise_for_status()
    assert person.read("src/main.py") == FILES["src/main.py"]
    assert {(one.form, one.body["model"]) for one in person.model.requests} == {(form, BACKEND_NAMES[form])}
    assert sum(one.is_from_aider for one in person.model.requests) == 1


def test_a_call_that_the_model_writes_as_text_is_executed_and_not_shown(person: Person) -> None:
    events = person.chat("dir-docs", "What's in README.md?")
    (read,) = calls(events)
    assert read["rich"][0]["text"] == FILES["README.md"]
    assert "".join(token["content"] for token in of_type(events, "token")) == "That is all."


def test_a_card_gives_the_events_of_the_message_rendered_from_it(person: Person) -> None:
    card = {"title": "Look around", "task": "Say what you see.", "files": ["src/main.py"], "acceptance": ["It is short."]}
    by_card = person.send_card("dir-code", **card)
    (received,) = person.model.requests
    by_chat = person.chat("dir-code", received.question)
    assert comparable(by_card) == comparable(by_chat)
    assert answer_text(by_card) == "That is all."
    assert person.model.requests[1].body == received.body
    assert all(text in received.question for text in ("Look around", "Say what you see.", "src/main.py", "It is short."))


@pytest.mark.parametrize(("form", "decision"), [("ollama", "approve"), ("anthropic", "deny")])
def test_the_architect_asks_three_directors_and_one_call_waits(person: Person, form: str, decision: str) -> None:
    events = person.chat("architect", "Release it", model=MODELS[form])
    outer = {event["id"]: event["args"]["agent"] for event in calls(events, "delegate")}
    edits = {event["agent"]: event for event in calls(events, "aider_edit")}
    assert {*outer.values()} == {*edits} == {"dir-code", "dir-docs", "dir-devsecops"}
    assert all(outer[edit["parent_id"]] == agent for agent, edit in edits.items())
    assert person.read("src/main.py") == DOCUMENTED
    assert person.read("docs/notes.md") == "# Notes\n"
    _assert_usage_is_the_audits(person, events)

    replay = person.client.get(f"/c1/agents/architect/chat/{events[0]['message_id']}")
    assert parse_events(replay.text) == events
    (waiting,) = of_type(events, "approval")
    approval = f"/a1/approvals/{waiting['approval']['id']}"
    assert person.get(approval) == waiting["approval"]
    assert (waiting["approval"]["status"], waiting["approval"]["agent"]) == ("pending", "dir-devsecops")
    assert "infra/main.tf" not in {entry["path"] for entry in person.get(f"{person.workspace}/tree")["entries"]}
    body = {"decision": decision, "reason": "Region eu-2, please."}
    decided = person.client.post(approval, json=body).raise_for_status().json()
    assert decided["status"] == {"approve": "executed", "deny": "denied"}[decision]
    tree = {entry["path"] for entry in person.get(f"{person.workspace}/tree")["entries"]}
    assert ("infra/main.tf" in tree) == (decision == "approve")
    again = person.client.post(approval, json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "approval_decided")

    person.chat("architect", "What became of it?", model=MODELS[form])
    (asked,) = person.asked("What became of it?")
    assert "approval_required" not in str(asked.body["messages"])
    (outcome,) = [one for result in asked.results for one in result["approvals"]]
    assert outcome["approval_id"] == decided["id"]
    if decision == "approve":
        assert outcome["result"] == decided["result"]
    else:
        assert outcome["error"]["code"] == "approval_denied"
        assert "Region eu-2, please." in outcome["error"]["message"]


def _assert_usage_is_the_audits(person: Person, events: Sequence[Event]) -> None:
    (usage,) = of_type(events, "usage")
    audited = [*flatten(person.get(f"/v1/audit/{events[0]['request_id']}")["calls"])]
    for name in ("prompt_tokens", "completion_tokens"):
        assert usage["usage"][name] == sum(one[name] or 0 for one in audited)
    assert Decimal(usage["cost"]["usd"]) == sum(Decimal(one["cost_usd"] or 0) for one in audited)
    assert usage["cost"]["sub_calls"] == len(person.model.requests) == sum(one["kind"] == "chat" for one in audited)


def test_directors_are_models_of_the_openai_sdk(person: Person, gateway: Gateway) -> None:
    """A single shot works in the agent's own workspace. Nobody could decide on a call that waits, so it fails."""
    versions = "/a1/workspaces/default/versions"
    before = person.get(versions)["versions"]
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="demo-token", max_retries=0) as client:

        def ask(director: str, question: str) -> list[Any]:
            chunks = client.chat.completions.create(
                model=f"agent/{director}", messages=[{"role": "user", "content": question}], stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text.endswith("That is all.")
            return [*person.model.requests[-1].results]

        (listed,) = ask("dir-code", "What files are in src/?")
        assert [entry["path"] for entry in listed["entries"]] == ["src/main.py", "src/util.py"]
        (read,) = ask("dir-code", "What's in src/main.py?")
        assert read["text"] == FILES["src/main.py"]
        (refused,) = ask("dir-devsecops", "Set the region")
        assert refused["error"]["code"] == "approval_unavailable"
        assert person.get(versions)["versions"] == before
        (edited,) = ask("dir-docs", "Write the notes")
    newest = person.get(versions)["versions"][0]
    assert (newest["version"], newest["agent"], newest["session_id"]) == (edited["version"], "dir-docs", None)
    assert newest["run_id"].startswith("req_")
    assert person.get("/a1/approvals")["approvals"] == []


def test_a_deleted_workspace_leaves_no_byte_after_the_sweep(
    person: Person, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gateway.aws_environment().items():
        monkeypatch.setenv(name, value)
    (table,) = boto3.client("dynamodb").list_tables()["TableNames"]
    (bucket,) = [one["Name"] for one in boto3.client("s3").list_buckets()["Buckets"]]
    secret = os.urandom(500)  # a pack has bytes that cannot be compressed as they are
    person.put("secret.bin", secret)
    assert any(secret in body for body in _objects(bucket).values())
    person.client.delete(person.workspace).raise_for_status()
    store = Aws(table=table, bucket=bucket).for_tenant(TenantId("demo"))
    asyncio.run(sweep_workspaces(store, int(time.time()) + TWO_HOURS, Deadline.after(30)))
    assert not [key for key, body in _objects(bucket).items() if person.name in key or secret in body]
    pages = boto3.client("dynamodb").get_paginator("scan").paginate(TableName=table)
    named = [
        item["sk"]["S"] for page in pages for item in page["Items"] if f"#{person.name}" in item["pk"]["S"] + item["sk"]["S"]
    ]
    assert named == [f"WS#{person.name}"], "only the last version's number stays"
    assert person.put("new.txt", b"new")["version"] == 3


def _objects(bucket: str) -> dict[str, bytes]:
    s3 = boto3.client("s3")
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]
    return {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
