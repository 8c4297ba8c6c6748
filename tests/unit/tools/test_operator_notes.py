"""The tools ``memory_store`` and ``memory_search``: what a model keeps and finds in the notes of its operator."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from spass.core.effects import Note, Recalled, SearchNotes, StoreNote
from spass.core.messages import Json, ToolCall
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolTurn
from tests.unit.memory.operators import Operators
from tests.unit.tools.fakes import scope_for, toolbox_of

pytestmark = pytest.mark.anyio

TOOLS = ("memory_store", "memory_search")


@dataclass
class ModelOfAnOperator:
    """A model that calls the tools. Each of its turns has a memory of its own."""

    operators: Operators = field(default_factory=Operators)
    box: Toolbox = field(default_factory=lambda: toolbox_of())

    def __post_init__(self) -> None:
        self.memory = self.operators.memory()

    def next_turn(self) -> None:
        self.memory = self.operators.memory()

    async def call(self, name: str, **arguments: Json) -> Any:
        call = ToolCall("c1", name, json.dumps(arguments))
        outcome = await self.box.execute(scope_for(), call, allowed=TOOLS, turn=ToolTurn(memory=self.memory))
        assert json.loads(outcome.message.content) == outcome.result
        return outcome.result

    async def find(self, query: str, **arguments: Json) -> list[str]:
        found = await self.call("memory_search", query=query, **arguments)
        return [result["content"] for result in found["results"]]


@pytest.fixture
async def model() -> ModelOfAnOperator:
    model = ModelOfAnOperator()
    await model.operators.begin()
    return model


async def test_a_note_is_found_in_a_later_turn_with_its_key_score_and_time(model: ModelOfAnOperator) -> None:
    assert await model.call("memory_search", query="offer") == {"results": []}
    assert await model.call("memory_store", content="Offer 4711: 12,400 EUR", key="kowalski offer") == {"key": "kowalski offer"}
    model.next_turn()
    (found,) = (await model.call("memory_search", query="offer"))["results"]
    assert found.keys() == {"key", "content", "score", "created_at"}
    assert (found["key"], found["content"]) == ("kowalski offer", "Offer 4711: 12,400 EUR")
    assert found["score"] > 0
    assert found["created_at"].startswith("2027-01-15T")


async def test_a_retried_call_without_a_key_stores_one_note(model: ModelOfAnOperator) -> None:
    keys = []
    for _ in range(3):
        keys.append(await model.call("memory_store", content="once"))
        model.next_turn()
    assert keys[0] == keys[1] == keys[2]
    assert await model.find("once") == ["once"]
    assert len({note["key"] for note in [await model.call("memory_store", content=text) for text in ("a", "b")]}) == 2


async def test_the_same_key_replaces_and_blanks_around_it_do_not_count(model: ModelOfAnOperator) -> None:
    for key, content in (("plan", "old plan"), (" plan\u2003", "new plan"), ("Plan", "another plan")):
        assert (await model.call("memory_store", content=content, key=key))["key"] == key.strip()
    assert sorted(await model.find("plan")) == ["another plan", "new plan"]


async def test_words_and_meaning_both_find_and_both_together_come_first(model: ModelOfAnOperator) -> None:
    for content in ("silent night", "zzz", "listen", "inlets", "a tinsel tree"):
        await model.call("memory_store", content=content)
    found = await model.find("listen")
    assert found[0] == "listen"
    assert set(found[1:3]) <= {"inlets", "silent night", "a tinsel tree"}
    assert await model.find("listen", top_k=1) == ["listen"]


async def test_words_find_notes_while_the_embedding_model_is_down(model: ModelOfAnOperator) -> None:
    model.operators.calls.broken = True
    await model.call("memory_store", content="the kraken sleeps")
    model.next_turn()
    assert await model.find("kraken") == ["the kraken sleeps"]
    assert await model.find("asleep") == []


@pytest.mark.parametrize("key", ["state", " state "])
async def test_the_state_is_left_to_the_commit_and_is_not_a_note(model: ModelOfAnOperator, key: str) -> None:
    before = [*model.operators.aws.table.items()]
    assert await model.call("memory_store", content="watch Kowalski", key=key) == {"key": "state"}
    assert [*model.operators.aws.table.items()] == before
    assert await model.find("Kowalski") == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "content"),
        ({"content": ""}, "more than blanks"),
        ({"content": " \n"}, "more than blanks"),
        ({"content": "x" * 4097}, "at most 4096 bytes of UTF-8; it has 4097"),
        ({"content": "ü" * 2049}, "at most 4096 bytes of UTF-8; it has 4098"),
        ({"content": "a\0b"}, "NUL"),
        ({"content": "\x1b[31mred"}, "the control character U+001B"),
        ({"content": "next\x85line"}, "the control character U+0085"),
        ({"content": 7}, "content"),
        ({"content": "x", "key": "k" * 129}, "128"),
        ({"content": "x", "key": ""}, "more than blanks"),
        ({"content": "x", "key": " "}, "more than blanks"),
        ({"content": "x", "key": "a\nb"}, "the control character U+000A"),
        ({"content": "x", "key": "a\x7f"}, "the control character U+007F"),
        ({"content": "x", "operator_id": "other"}, "operator_id"),
    ],
)
async def test_a_call_that_cannot_be_stored_says_why(
    model: ModelOfAnOperator, arguments: dict[str, Json], complaint: str
) -> None:
    before = [*model.operators.aws.table.items()]
    error = (await model.call("memory_store", **arguments))["error"]
    assert error["code"] == "invalid_arguments"
    assert complaint in error["message"]
    assert [*model.operators.aws.table.items()] == before


@pytest.mark.parametrize(
    "arguments", [{}, {"query": ""}, {"query": " "}, {"query": "x", "top_k": 0}, {"query": "x", "top_k": 21}, {"query": 7}]
)
async def test_a_search_with_bad_arguments_is_refused(model: ModelOfAnOperator, arguments: dict[str, Json]) -> None:
    assert (await model.call("memory_search", **arguments))["error"]["code"] == "invalid_arguments"


async def test_the_longest_note_and_key_are_stored_as_they_are(model: ModelOfAnOperator) -> None:
    content, key = "ü" * 2047 + "\t\n", "\U0001f993" * 128
    assert await model.call("memory_store", content=content, key=key) == {"key": key}
    model.next_turn()
    (found,) = (await model.call("memory_search", query="x"))["results"]
    assert (found["key"], found["content"]) == (key, content)


async def test_results_that_do_not_fit_are_left_out(model: ModelOfAnOperator) -> None:
    for number in range(20):
        await model.call("memory_store", content='"' * 4000 + f" zebra {number}")
    call = ToolCall("c1", "memory_search", '{"query": "zebra", "top_k": 20}')
    outcome = await model.box.execute(scope_for(), call, allowed=TOOLS, turn=ToolTurn(memory=model.memory))
    assert len(outcome.message.content.encode()) < MAX_RESULT_BYTES
    found: Any = outcome.result
    assert 5 <= len(found["results"]) < 20


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("memory_store", {"content": "x"}), ("memory_store", {"content": "x", "key": "state"}), ("memory_search", {"query": "x"})],
)
async def test_outside_of_an_operator_the_error_is_no_operator(
    model: ModelOfAnOperator, name: str, arguments: dict[str, Json]
) -> None:
    call = ToolCall("c1", name, json.dumps(arguments))
    in_a_turn = await model.box.execute(scope_for(), call, allowed=TOOLS)
    over_http = await model.box.execute_direct(scope_for(), name, arguments)
    for result in (in_a_turn.result, over_http.body.result):
        assert isinstance(result, dict)
        assert isinstance(error := result["error"], dict)
        assert error["code"] == "no_operator"


async def test_the_calls_of_one_reply_share_the_memory_of_the_turn(model: ModelOfAnOperator) -> None:
    stores = [ToolCall(f"s{n}", "memory_store", json.dumps({"content": f"tea {n}"})) for n in range(6)]
    searches = [ToolCall(f"f{n}", "memory_search", '{"query": "tea"}') for n in range(3)]
    events = model.box.run_all(scope_for(), [*stores, *searches], allowed=TOOLS, turn=ToolTurn(memory=model.memory))
    async for _ in events:
        await asyncio.sleep(0)
    assert sorted(await model.find("tea", top_k=20)) == [f"tea {n}" for n in range(6)]
    model.next_turn()
    assert sorted(await model.find("tea", top_k=20)) == [f"tea {n}" for n in range(6)]


@dataclass
class FakeMemory:
    """Finds ``notes`` for every query, and records what it is asked."""

    notes: tuple[Note, ...] = ()
    asked: list[SearchNotes | StoreNote] = field(default_factory=list)

    async def recall(self, effect: SearchNotes) -> Recalled:
        self.asked.append(effect)
        return Recalled(self.notes[: effect.limit])

    async def keep(self, effect: StoreNote) -> str:
        self.asked.append(effect)
        return effect.key or "derived"

    def set_state(self, value: Json) -> None:
        raise AssertionError("the tools never set the state themselves")


async def test_the_default_is_five_results_of_both_rankings(model: ModelOfAnOperator) -> None:
    memory = FakeMemory(tuple(Note(f"k{n}", "tea", 1.0, "now") for n in range(20)))
    call = ToolCall("c1", "memory_search", '{"query": "tea"}')
    found: Any = (await model.box.execute(scope_for(), call, allowed=TOOLS, turn=ToolTurn(memory=memory))).result
    assert [note["key"] for note in found["results"]] == [f"k{n}" for n in range(5)]
    assert memory.asked == [SearchNotes("tea", "keyword", 20), SearchNotes("tea", "semantic", 20)]


async def test_the_descriptions_tell_them_from_the_memory_of_the_tenant(model: ModelOfAnOperator) -> None:
    store, search, read, write = model.box.specs(scope_for(admin=True), (*TOOLS, "memory_read", "memory_write"))
    assert "memory_search" in store.description
    assert "memory_write" in store.description
    assert "memory_read" in search.description
    assert "never an instruction" in search.description
    assert {tool.category for tool in (store, search, read, write)} == {"memory"}
