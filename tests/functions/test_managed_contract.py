"""The shapes, lists and keys that the page about managed agents promises, for every route that has them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from spass.testing.model import Answer, calls, in_turn
from tests.functions.gateway import Reply
from tests.functions.managed_agents import ADA, ManagedClient, execute, queue

MAX_BYTES: Final = 256 * 1024
MESSAGE_FIELDS: Final = ["id", "seq", "direction", "content", "status", "run_id", "created_at"]
RUN_FIELDS: Final = [
    *("id", "status", "trigger", "scheduled_for", "turns", "usage", "cost_usd", "error", "created_at", "finished_at"),
]


def test_messages_and_runs_have_the_fields_of_the_page_from_beginning_to_end(client: ManagedClient) -> None:
    agent = client.create()
    message = client.send("POST", f"/{agent}/messages", {"content": "Hello"}).json
    queued = client.send("POST", f"/{agent}/run", {}).json
    assert (list(message), list(queued)) == (MESSAGE_FIELDS, RUN_FIELDS)
    assert {name: queued[name] for name in RUN_FIELDS[1:8]} == {
        "status": "queued",
        "trigger": "run",
        "scheduled_for": None,
        "turns": 0,
        "usage": None,
        "cost_usd": None,
        "error": None,
    }
    assert queued["finished_at"] is None
    assert client.get(agent)["status"] == "running", "a run is active from its POST"
    assert client.gateway.model.requests == [], "a worker runs it"
    execute(client.gateway, agent, queued["id"])
    run = client.send("GET", f"/{agent}/runs/{queued['id']}").json
    assert ([run], list(run)) == (client.runs(agent), RUN_FIELDS)
    assert (run["status"], run["turns"], run["usage"]["total_tokens"], run["cost_usd"]) == ("succeeded", 1, 15, "0.00002")
    assert run["created_at"] <= run["finished_at"]
    for stored in client.messages(agent):
        assert list(stored) == MESSAGE_FIELDS
        assert stored["run_id"] == run["id"]


def test_a_run_takes_the_oldest_fifty_messages_and_the_next_one_the_rest(client: ManagedClient) -> None:
    agent = client.create()
    for number in range(53):
        client.send("POST", f"/{agent}/messages", {"content": f"m{number}"})
    runs = list[str]()
    for read in (range(50), range(50, 53)):
        runs.append(queue(client, agent, "Own."))
        execute(client.gateway, agent, runs[-1])
        texts = [*(f"m{number}" for number in read), "Own."]
        assert client.gateway.model.requests[-1].messages[-1].content == "\n\n".join(texts)
        pending = [message["content"] for message in client.messages(agent) if message["status"] == "pending"]
        assert pending == [f"m{number}" for number in range(read.stop, 53)]
    by_run = [message["run_id"] for message in client.messages(agent) if message["direction"] == "user_to_agent"]
    assert by_run == [runs[0]] * 50 + [runs[1]] * 3


def test_a_run_takes_at_most_256_kib_but_at_least_one_message(client: ManagedClient) -> None:
    client.gateway.model.script = "Read."
    agent = client.create()
    for letter, size in (("a", MAX_BYTES), ("b", MAX_BYTES - 1), ("c", 1), ("d", 1)):
        assert client.send("POST", f"/{agent}/messages", {"content": letter * size}).status == 202
    for letters in ("a", "bc", "d"):
        execute(client.gateway, agent, queue(client, agent, "!"))
        shown = client.gateway.model.requests[-1].messages[-1].content
        assert [text[0] for text in shown.split("\n\n")] == [*letters, "!"]


Listed = Callable[[ManagedClient], tuple[str, str, list[str]]]
"""Make entries of a list. Return its path, the name of its entries, and their ids in the order of the list."""


def listed_agents(client: ManagedClient) -> tuple[str, str, list[str]]:
    return "/v1/managed-agents", "agents", [client.create(name=f"a{number}") for number in range(5)][::-1]


def listed_messages(client: ManagedClient) -> tuple[str, str, list[str]]:
    agent = client.create()
    made = [client.send("POST", f"/{agent}/messages", {"content": f"m{number}"}).json["id"] for number in range(5)]
    return f"/v1/managed-agents/{agent}/messages", "messages", made


def listed_runs(client: ManagedClient) -> tuple[str, str, list[str]]:
    agent, made = client.create(), list[str]()
    for _ in range(5):
        made.append(queue(client, agent))
        execute(client.gateway, agent, made[-1])
    return f"/v1/managed-agents/{agent}/runs", "runs", made[::-1]


def listed_notes(client: ManagedClient) -> tuple[str, str, list[str]]:
    """Return the notes, whose order is fixed but not promised."""
    agent = client.create(agent="operative", tools=["memory_store"])
    answers: list[Answer] = [
        calls(*(("memory_store", {"content": f"c{number}", "key": f"n{number}"}) for number in range(5))),
        "Done.",
    ]
    client.gateway.model.script = in_turn(answers)
    execute(client.gateway, agent, queue(client, agent))
    path = f"/v1/operators/{agent}/notes"
    listed = client.gateway.send("GET", path, token=client.token, headers=dict(client.headers)).json
    assert listed["next_cursor"] is None
    assert sorted(note["key"] for note in listed["notes"]) == [f"n{number}" for number in range(5)]
    return path, "notes", [note["key"] for note in listed["notes"]]


@pytest.mark.parametrize("make", [listed_agents, listed_messages, listed_runs, listed_notes])
def test_every_list_has_pages_whose_cursors_belong_to_it_and_its_owner(client: ManagedClient, make: Listed) -> None:
    def read(query: str, path: str, caller: ManagedClient = client) -> Any:
        return client.gateway.send("GET", f"{path}{query}", token=caller.token, headers=dict(caller.headers))

    path, name, expected = make(client)
    identity = "key" if name == "notes" else "id"
    for limit in (1, 2, 4, 5, 1000):
        seen, cursor, pages = list[str](), "", 0
        while True:
            page = read(f"?limit={limit}{cursor}", path).json
            assert list(page) == [name, "next_cursor"]
            assert len(page[name]) <= limit
            seen, pages = seen + [entry[identity] for entry in page[name]], pages + 1
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == expected, limit
        assert pages == -(-5 // limit)
    mine = read("?limit=2", path).json["next_cursor"]
    for query in (
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1.5",
        "limit=",
        "limit=x",
        "limit=1&limit=2",
        "cursor=%00",
        "cursor=x",
        f"cursor={mine[:-2]}",
        f"cursor=A{mine}",
    ):
        reply = read(f"?{query}", path)
        assert (reply.status, reply.code) == (400, "invalid_request"), query
    bob = ManagedClient(client.gateway, user="bob")
    other_path, _, _ = make(bob)
    foreign = read(f"?cursor={mine}", other_path, bob)
    assert (foreign.status, foreign.code) == (400, "invalid_request"), "the cursor of another owner"
    assert read(f"?cursor={mine}", path).status == 200


@pytest.mark.parametrize("body", [{"input": "Go."}, {}])
def test_the_same_key_queues_one_run(client: ManagedClient, body: object) -> None:
    agent, key = client.create(), {"Idempotency-Key": "run-1"}
    client.send("POST", f"/{agent}/messages", {"content": "Hello"})
    first, second = (client.send("POST", f"/{agent}/run", body, key) for _ in range(2))
    assert (second.status, second.json, second.headers["idempotency-replayed"]) == (202, first.json, "true")
    assert client.send("POST", f"/{agent}/run", {"input": "Stop."}, key).code == "idempotency_key_reused"
    assert [run["id"] for run in client.runs(agent)] == [first.json["id"]]
    execute(client.gateway, agent, first.json["id"])
    assert client.send("POST", f"/{agent}/run", body, key).json == first.json, "also when the run is over"
    assert len(client.gateway.model.requests) == 1


def test_a_key_belongs_to_its_route_agent_and_user(client: ManagedClient) -> None:
    """The same key at another agent, or of another user, is another request. A refused request does not use it up."""
    key = {"Idempotency-Key": "k-1"}
    bob = ManagedClient(client.gateway, user="bob")
    agents = [(client, client.create()), (client, client.create()), (bob, bob.create())]
    assert client.send("POST", f"/{agents[0][1]}/run", {}, key).code == "nothing_to_run"
    for caller, agent in agents:
        assert caller.send("POST", f"/{agent}/messages", {"content": "Hello"}, key).status == 202
        assert [message["content"] for message in caller.messages(agent)] == ["Hello"]
        assert caller.send("POST", f"/{agent}/run", {}, key).status == 202
    for caller, agent in agents:
        assert len(caller.runs(agent)) == 1


RAW: Mapping[str, tuple[bytes, str | None]] = {
    "half of a surrogate pair": (b'"a\\ud800b"', None),
    "the other half": (b'"\\udc00"', None),
    "bytes that are not UTF-8": (b'"\xff"', None),
    "NUL": (b'"a\\u0000b"', "text"),
    "no-break blanks": (b'"\\u00a0\\u2003"', "text"),
    "256 KiB and one byte": (b'"' + b"x" * (MAX_BYTES + 1) + b'"', "text"),
    "256 KiB and one byte in wide characters": (b'"' + "🍵".encode() * (MAX_BYTES // 4) + b'x"', "text"),
}


@pytest.mark.parametrize("name", RAW)
def test_no_text_with_broken_or_too_many_characters_is_stored(client: ManagedClient, name: str) -> None:
    text, param = RAW[name]
    agent = client.create()
    before = client.gateway.stored()
    for path, body, field in (
        ("messages", b'{"content": %s}', "content"),
        ("messages", b'{"content": %s, "stream": true}', "content"),
        ("run", b'{"input": %s}', "input"),
    ):
        reply = client.gateway.send("POST", f"/v1/managed-agents/{agent}/{path}", headers=ADA, raw=body % text)
        assert (reply.status, reply.code) == (400, "invalid_request"), reply.text[:300]
        assert reply.json["error"]["param"] == (field if param else None)
    assert client.gateway.stored() == before
    assert client.gateway.model.requests == []


@pytest.mark.parametrize("value", ["yes", "true", 1, 0, None, [], {}])
def test_stream_is_true_or_false(client: ManagedClient, value: object) -> None:
    agent = client.create()
    reply = client.send("POST", f"/{agent}/messages", {"content": "Hello", "stream": value})
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "stream")
    assert client.messages(agent) == []


def test_256_kib_are_accepted_by_every_route_that_takes_a_text(client: ManagedClient) -> None:
    text = "🍵" * (MAX_BYTES // 4)
    agent = client.create()
    streamed = client.send("POST", f"/{agent}/messages", {"content": text, "stream": True})
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert client.send("POST", f"/{agent}/messages", {"content": text}).json["content"] == text
    execute(client.gateway, agent, queue(client, agent, text))
    shown = client.gateway.model.requests[-1].messages[-1].content
    assert shown == f"{text}\n\n{text}"
    asked = [message["content"] for message in client.messages(agent) if message["direction"] == "user_to_agent"]
    assert asked == [text, text]


CHOICES: Mapping[str, Mapping[str, object]] = {
    "a parameter of another kind": {"agent": "orchestrator", "params": {"operators": 1}},
    "a mode on simple": {"agent": "simple", "params": {"mode": "structured"}},
    "an axis on operative": {"agent": "operative", "params": {"retrieval_strategy": "none"}},
    "an unknown axis value": {"agent": "monitor_operative", "params": {"memory_extraction": "graph"}},
    "an axis without a value": {"agent": "monitor_operative", "params": {"task_decomposition": None}},
    "a sub-model on orchestrator": {"agent": "orchestrator", "params": {"sub_model": "small"}},
    "too many turns": {"agent": "orchestrator", "params": {"max_turns": 101}},
    "no turns": {"agent": "orchestrator", "params": {"max_turns": 0}},
    "a text as turns": {"agent": "orchestrator", "params": {"max_turns": "3"}},
    "too hot": {"agent": "orchestrator", "params": {"temperature": 2.5}},
    "the prompt as a parameter": {"agent": "orchestrator", "params": {"system_prompt": "x"}},
    "a list as params": {"agent": "orchestrator", "params": []},
    "an unknown model": {"agent": "orchestrator", "model": "small-2"},
    "an embedding model": {"agent": "orchestrator", "model": "mini-embed"},
    "a model of others": {"agent": "orchestrator", "model": "dear"},
    "no model": {"agent": "orchestrator", "model": ""},
    "an unknown tool": {"agent": "orchestrator", "tools": ["calculater"]},
    "a tool twice": {"agent": "orchestrator", "tools": ["think", "think"]},
    "a tool that is a number": {"agent": "orchestrator", "tools": [3]},
    "a model for a file": {"agent": "plain", "model": "small"},
    "parameters for a file": {"agent": "plain", "params": {}},
    "tools of a file": {"agent": "plain", "tools": ["think"]},
    "a prompt for a file": {"agent": "plain", "system_prompt": "x"},
    "an agent as a model": {"agent": "orchestrator", "model": "agent/plain"},
    "an unknown agent": {"agent": "planner"},
    "a path as an agent": {"agent": "../plain"},
}


def error_of(reply: Reply) -> tuple[object, ...]:
    error = reply.json["error"]
    return reply.status, *(error[name] for name in ("code", "message", "type", "param"))


@pytest.mark.parametrize("name", CHOICES)
def test_what_ask_refuses_a_managed_agent_refuses_with_the_same_error(client: ManagedClient, name: str) -> None:
    choice = CHOICES[name]
    asked = client.gateway.send("POST", "/v1/ask", headers=ADA, body={"input": "Hi", **choice})
    assert asked.status in (400, 403, 404), asked.text
    before = client.gateway.stored()
    created = client.send("POST", body={"name": "a", **choice})
    assert error_of(created) == error_of(asked)
    assert client.gateway.stored() == before
    if choice["agent"] not in ("planner", "../plain"):
        agent = client.create(agent=choice["agent"])
        before = client.gateway.stored()
        changed = client.send("PATCH", f"/{agent}", {field: value for field, value in choice.items() if field != "agent"})
        assert error_of(changed) == error_of(asked)
        assert client.gateway.stored() == before
    assert client.gateway.model.requests == []
