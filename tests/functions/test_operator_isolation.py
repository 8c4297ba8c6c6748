"""A thousand random requests of operators of two users, of tokens, of two tenants and of a tenant whose id begins alike.

Every text of an operator has its mark. No other mark is in what it reads, in what its model reads, or in its counts.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Final, NamedTuple

import pytest

from spass.testing.model import Answer, calls, in_turn
from tests.functions.gateway import Gateway, Reply
from tests.sampling import SOAK

REQUESTS: Final = 10_000 if SOAK else 300
CALLERS: Final = (
    ("demo-token", "ada"),
    ("demo-token", "ad"),
    ("demo-admin-token", "bob"),
    ("demo-token", None),
    ("demo-admin-token", None),
    ("sibling-token", "ada"),
    ("other-token", "ada"),
    ("other-token", None),
)
OPERATORS: Final = ("news", "new", "news:2")
MARK: Final = re.compile(r"mark(\d\d)x")


class Owner(NamedTuple):
    """One operator of one caller. ``number`` is in the mark of all its texts."""

    number: int
    token: str
    user: str | None
    operator: str

    @property
    def mark(self) -> str:
        return f"mark{self.number:02}x"

    @property
    def caller(self) -> tuple[str, str | None]:
        return self.token, self.user

    @property
    def headers(self) -> Mapping[str, str]:
        return {"SPASS-User-Id": self.user} if self.user is not None else {}


OWNERS: Final = [Owner(number, *caller, operator) for number, (caller, operator) in enumerate(product(CALLERS, OPERATORS))]


@dataclass
class Expected:
    """What one operator holds: the texts of its conversation, its notes by key, and what it left as its state."""

    session: str
    is_session_deleted: bool = False
    inputs: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    state: str = ""


@dataclass
class World:
    """All operators of a gateway, and what each should hold."""

    gateway: Gateway
    random: Random = field(default_factory=lambda: Random(17))
    expected: dict[int, Expected] = field(default_factory=dict)
    cursors: list[tuple[int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    asked: int = 0

    def send(self, owner: Owner, method: str, path: str, body: object = None) -> Reply:
        """Send a request. Neither its answer nor what a model read for it has the mark of another operator."""
        model = self.gateway.model
        model.requests.clear()
        model.embeddings.clear()
        headers = dict(owner.headers)
        reply = self.gateway.send(method, path, token=owner.token, user=owner.user, headers=headers, body=body)
        read = " ".join([reply.text, *map(str, model.requests), *model.embedded_texts])
        assert {*MARK.findall(read)} <= {f"{owner.number:02}"}, (owner, path)
        return reply

    def ask(self, owner: Owner) -> None:
        """Run the operator: it stores a note or the state, or searches, or only answers."""
        self.asked += 1
        text = f"{owner.mark} tea {self.asked}"
        before = self.expected.get(owner.number)
        key = self.random.choice(["plan", f"k{self.asked}"])
        does = self.random.choice(["note", "state", "search", "answer"])
        tools: dict[str, tuple[str, dict[str, object]]] = {
            "note": ("memory_store", {"content": text, "key": key}),
            "state": ("memory_store", {"content": text, "key": "state"}),
            "search": ("memory_search", {"query": "tea", "top_k": 20}),
        }
        answers: list[Answer] = [*([calls(tools[does])] if does in tools else []), f"Noted {text}."]
        self.gateway.model.script = in_turn(answers)
        body = {"input": text, "agent": "operative", "tools": ["memory_store", "memory_search"], "model": "small"}
        reply = self.send(owner, "POST", "/v1/ask", {**body, "params": {"operator_id": owner.operator}})
        assert reply.status == 200, reply.text
        session = reply.json["metadata"]["session_id"]
        shown = str(self.gateway.model.requests[0])
        held = self.expected.setdefault(owner.number, Expected(session))
        assert (held.session == session) or not held.inputs
        assert [text in shown for text in held.inputs[-2:]] == [True] * len(held.inputs[-2:])
        assert ("Previous state" in shown.replace("ˆ", " ")) is (before is not None)
        if does == "search":
            (result,) = reply.json["tool_results"]
            found = [note["content"] for note in json.loads(result["content"])["results"]]
            assert len(found) == min(20, len(held.notes))
            assert {*found} <= {*held.notes.values()}
        elif does == "note":
            held.notes[key] = text
        held.session, held.state, held.is_session_deleted = session, text, False
        held.inputs.append(text)
        self.counts[does] += 1

    def view(self, owner: Owner) -> None:
        held = self.expected.get(owner.number)
        reply = self.send(owner, "GET", f"/v1/operators/{owner.operator}")
        if held is None:
            assert reply.code == "operator_not_found"
            return
        session = None if held.is_session_deleted else held.session
        assert (reply.json["session_id"], reply.json["notes"]) == (session, len(held.notes))
        assert held.state in str(reply.json["state"])

    def list_notes(self, owner: Owner) -> None:
        """Read all pages of the notes."""
        held, notes, cursor = self.expected.get(owner.number), dict[str, str](), ""
        while True:
            reply = self.send(owner, "GET", f"/v1/operators/{owner.operator}/notes?limit={self.random.randint(1, 4)}{cursor}")
            if held is None:
                assert reply.code == "operator_not_found"
                return
            notes |= {note["key"]: note["content"] for note in reply.json["notes"]}
            if reply.json["next_cursor"] is None:
                break
            self.cursors.append((owner.number, reply.json["next_cursor"]))
            cursor = f"&cursor={reply.json['next_cursor']}"
        assert notes == held.notes

    def use_a_foreign_cursor(self, owner: Owner) -> None:
        foreign = [cursor for number, cursor in self.cursors if number != owner.number]
        if foreign and owner.number in self.expected:
            path = f"/v1/operators/{owner.operator}/notes?cursor={self.random.choice(foreign)}"
            assert self.send(owner, "GET", path).code == "invalid_request"
            self.counts["foreign cursor"] += 1

    def use_a_foreign_session(self, owner: Owner) -> None:
        """Read or delete the session of an operator of another owner: it is absent."""
        others = [held.session for number, held in self.expected.items() if OWNERS[number].caller != owner.caller]
        if owner.user is None or not others:
            return
        path = f"/a1/agents/operative/sessions/{self.random.choice(others)}"
        method, tail = self.random.choice([("GET", ""), ("GET", "/messages"), ("DELETE", ""), ("GET", "/lineage")])
        assert self.send(owner, method, f"{path}{tail}").code == "session_not_found"
        self.counts["foreign session"] += 1

    def forget(self, owner: Owner) -> None:
        deleted = self.expected.pop(owner.number, None) is not None
        assert self.send(owner, "DELETE", f"/v1/operators/{owner.operator}").json == {"deleted": deleted}
        self.counts["forgotten"] += deleted

    def delete_session(self, owner: Owner) -> None:
        """Delete the session: the state and the notes stay."""
        held = self.expected.get(owner.number)
        if held is None or owner.user is None or not held.inputs:
            return
        reply = self.send(owner, "DELETE", f"/a1/agents/operative/sessions/{held.session}")
        assert reply.json == {"deleted": True}
        held.inputs.clear()
        held.is_session_deleted = True
        self.counts["deleted session"] += 1


def test_nothing_of_one_operator_is_in_an_answer_a_prompt_or_a_count_of_another(
    gateway: Gateway, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(gateway)
    requests = {world.ask: 8, world.view: 3, world.list_notes: 3, world.forget: 1, world.delete_session: 1}
    requests |= {world.use_a_foreign_cursor: 1, world.use_a_foreign_session: 1}
    for number in range(REQUESTS):
        (request,) = world.random.choices([*requests], [*requests.values()])
        request(world.random.choice(OWNERS))
        if number % 100 == 0:
            capsys.readouterr()
    must_happen = {"note", "state", "search", "answer", "forgotten", "deleted session", "foreign cursor", "foreign session"}
    assert must_happen <= world.counts.keys()
    record_property("requests", REQUESTS)
