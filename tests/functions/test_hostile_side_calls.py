"""Hostile results and hostile replies to the calls made aside for them, over the routes: every run succeeds within its limits."""

from typing import Final

import pytest

from spass.core.json import dump
from spass.testing.model import Answer, calls
from tests.functions.gateway import Gateway
from tests.functions.operator_runs import ask
from tests.functions.test_operator_axes import USER, script

LONG: Final = "x" * 1_000_000
CONTROLS: Final = "a\x00b\x1b[8mc\u202ed\u0085e\u2028f"
REPLIES: Final = {
    "500 causes": dump({"edges": [{"cause": f"cause {n}", "effect": "state", "evidence": "e" * 1000} for n in range(500)]}),
    "ends like keys": dump({"edges": [{"cause": "state", "effect": "note-1", "key": "state", "content": "x"}]}),
    "a megabyte of evidence": dump({"edges": [{"cause": LONG, "effect": LONG, "evidence": LONG, "confidence": 10**60}]}),
    "control characters": dump(
        {"edges": [{"cause": CONTROLS, "effect": CONTROLS, "evidence": CONTROLS}], "entities": [CONTROLS]}
    ),
    "10,000 facts": dump({"entities": [f"{n}" for n in range(10_000)], "facts": [f"fact {n}" for n in range(10_000)]}),
    "a query of a megabyte": dump({"grades": [0] * 20, "better_query": LONG}),
    "deep JSON": '{"edges":' * 50_000,
    "a wide object": "{" + ",".join(f'"{n}":{n}' for n in range(50_000)) + "}",
    "a long number": '{"grades": [' + "9" * 100_000 + "]}",
    "half a character": '{"entities": ["\\ud800"], "facts": ["\ud800"], "edges": [{"cause": "\ud800", "effect": "\ud800"}]}',
    "longer than the result": LONG,
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_hostile_reply_leaves_an_answer_and_notes_within_their_limits(gateway: Gateway, name: str) -> None:
    text = f"{CONTROLS[2:]} state " + '{"edges": [' * 100 + "leak " * 700  # a document cannot hold NUL
    gateway.put_documents(hostile=text)

    def hostile(*_: object) -> Answer:
        return REPLIES[name]

    steps: list[Answer] = [calls(("rag_doc_get", {"index_id": "notes", "doc_id": "hostile"})), "It leaks."]
    for extraction in ("causality_graph", "structured_json"):
        for _ in range(2):  # the second run recalls what the first one has kept
            gateway.model.script = script(hostile, *steps)
            body = {"params": {"operator_id": "plant", "memory_extraction": extraction}, "tools": ["rag_doc_get"]}
            reply = ask(gateway, "leak state cause fact", kind="monitor_operative", body=body)
            assert (reply.status, reply.json["content"]) == (200, "It leaks."), reply.text
            assert len(reply.content) < 200_000
    notes = gateway.send("GET", "/v1/operators/plant/notes?limit=1000", headers=USER).json["notes"]
    for note in notes:
        assert note["key"].startswith(("edge:", "facts:"))
        assert len(note["key"]) <= 128
        assert len(note["content"].encode()) <= 4096
        assert not {"\x00", "\x1b", "\x85"} & {*note["content"]}
    assert len(notes) <= 12
    state = gateway.send("GET", "/v1/operators/plant", headers=USER).json["state"]
    assert state == {"input": "leak state cause fact", "answer": "It leaks.", "at": state["at"]}
