"""JSON results are kept as they are. Of texts and of long JSON, entities and facts are kept."""

import json

import pytest

from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.core.json import dump
from spass.core.messages import Json
from tests.unit.agents.kinds.operator_world import OperatorRun, OperatorWorld, calling

pytestmark = pytest.mark.anyio

AGENT = MonitorOperativeAgent(memory_extraction="structured_json", observation_compression="none", retrieval_strategy="none")
TEXT = "The valve was stuck, so the pump stopped and the cellar was flooded."
FACTS = {"entities": ["valve"], "facts": ["The pump stopped."]}


async def run(result: Json, reply: str = dump(FACTS), times: int = 1) -> OperatorRun:
    return await OperatorWorld(calling(*["search"] * times), lambda _: reply, {"search": result}).run(AGENT)


@pytest.mark.parametrize(
    "result",
    [
        {"a": "ä" * 60, "b": [1.5, None]},
        ["x" * 60],
        {"text": "x" * 4085},
        '{"a": [1, 2],  "b": "' + "x" * 60 + '"}',
        f'["{TEXT}"]',
    ],
)
async def test_json_of_up_to_four_kibibytes_is_the_note(result: Json) -> None:
    found = await run(result)
    (note,) = found.memory.notes.values()
    assert note.content == (result if isinstance(result, str) else dump(result))
    assert found.asides == []


@pytest.mark.parametrize("result", [TEXT, {"text": "x" * 4086}, {"text": "ä" * 2100}, f"{{{TEXT}", f"[{TEXT}]", f'"{TEXT}"'])
async def test_of_a_text_and_of_longer_json_a_model_makes_entities_and_facts(result: Json) -> None:
    found = await run(result)
    (note,) = found.memory.notes.values()
    assert json.loads(note.content) == FACTS
    (aside,) = found.asides
    assert aside.messages[-1].content == (result if isinstance(result, str) else dump(result))
    assert aside.messages[-1].data


async def test_the_same_text_is_one_note_whatever_the_model_makes_of_it() -> None:
    replies = iter([dump(FACTS), '{"entities": [], "facts": ["Another."]}'])
    found = await OperatorWorld(calling("search", "search"), lambda _: next(replies), {"search": TEXT}).run(AGENT)
    assert len(found.memory.notes) == 1


@pytest.mark.parametrize("reply", ['{"entities": [], "facts": []}', '{"entities": [" "], "facts": [""], "other": 1}'])
async def test_nothing_worth_remembering_is_not_a_failure(reply: str) -> None:
    found = await run(TEXT, reply)
    assert (found.memory.written, found.side_calls) == ([], [])


@pytest.mark.parametrize(
    "reply", ["{}", "no", '{"entities": "valve", "facts": []}', '{"facts": ["x"]}', '["valve"]', '{"entities": [']
)
async def test_a_reply_of_another_shape_keeps_nothing_and_is_named(reply: str) -> None:
    found = await run(TEXT, reply)
    assert (found.memory.written, found.side_calls) == ([], [("memory_extraction", "unreadable_reply")])


async def test_too_many_facts_are_cut_to_a_note() -> None:
    found = await run(
        TEXT, dump({"entities": ["valve", "valve", {"name": "pump"}, 7], "facts": [f"{n} " + "ü" * 80 for n in range(200)]})
    )
    (note,) = found.memory.notes.values()
    kept = json.loads(note.content)
    assert kept["entities"] == ["valve", '{"name":"pump"}', "7"]
    assert kept["facts"][0].startswith("0 ")
    assert 3900 < len(note.content.encode()) <= 4096


@pytest.mark.parametrize("length", [1, 90, 100_000])
async def test_of_ten_thousand_facts_those_that_fit_are_kept(length: int) -> None:
    items: list[Json] = [f"{number} {'x' * length}" for number in range(10_000 if length < 100 else 10)]
    found = await run(TEXT, dump({"entities": items, "facts": items}))
    assert found.side_calls == []
    notes = [note.content for note in found.memory.notes.values()]
    assert [len(note.encode()) <= 4096 for note in notes] == ([True] if length < 100 else [])
    kept = [json.loads(note) for note in notes]
    assert [(note["entities"], note["facts"]) for note in kept] == [
        (items[: len(note["entities"])], items[: len(note["facts"])]) for note in kept
    ]
    assert all(abs(len(note["entities"]) - len(note["facts"])) <= 1 for note in kept)


@pytest.mark.parametrize(
    "items",
    [
        ["\x00\x1b[8m\u202estate\u0085"],
        [{"key": "state", "content": "x"}, {"key": "k" * 500}],
        [[[[["deep"]]]], None, True, 1.5],
        ["\U0001f642" * 500, "short"],
    ],
)
async def test_odd_facts_are_kept_under_the_key_of_their_text(items: list[Json]) -> None:
    found = await run(TEXT, dump({"entities": [], "facts": items, "key": "state", "content": "x"}))
    (note,) = found.memory.notes.values()
    assert note.key.startswith("facts:")
    assert len(note.content.encode()) <= 4096
    assert json.loads(note.content).keys() == {"entities", "facts"}
    assert found.memory.states == [{"input": "Find the cause", "answer": "Done."}]
