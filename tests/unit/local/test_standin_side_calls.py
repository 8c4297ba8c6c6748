"""The stand-in answers the calls that an operator makes aside, so that every axis works without keys."""

import json
from typing import Any, cast

import pytest

from local.standin.wire import complete
from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.calls.defence import sanitize_request
from spass.core.effects import Infer, Note
from spass.core.messages import Json
from spass.models.providers.openai_compatible import chat_body
from spass.models.types import ChatRequest
from tests.unit.agents.kinds.operator_world import OperatorRun, OperatorWorld, calling

pytestmark = pytest.mark.anyio

TEXT = (
    "The pump stopped because the valve was stuck. The cellar is painted white. "
    + " ".join(f"Nobody counts tile number {number} of this hall." for number in range(60))
    + " Ada Lovelace repaired the pump on 3 May."
)
NOTES = (
    Note("valve", "The valve of the pump was stuck"),
    Note("pump", "The pump stopped in May"),
    Note("roof", "The roof was painted red"),
)


def answer(effect: Infer) -> str:
    """Return the stand-in's reply to the request that the gateway would send."""
    request = sanitize_request(ChatRequest("wide", effect.messages, max_tokens=effect.max_tokens)).request
    return complete(cast("dict[str, Any]", chat_body(request, "max_tokens"))).content or ""


async def run(result: Json, *notes: Note, task: str = "Why did the pump stop?", **axes: str) -> OperatorRun:
    agent = MonitorOperativeAgent(**axes)  # type: ignore[arg-type]
    found = await OperatorWorld(calling("search"), answer, {"search": result}, notes).run(agent, task)
    assert found.side_calls == []
    return found


@pytest.mark.parametrize("result", [{"text": TEXT}, TEXT])
async def test_a_summary_is_shorter_and_has_names(result: Json) -> None:
    (summary,) = (await run(result)).results()
    assert "Ada Lovelace repaired the pump on 3 May." in summary
    assert len(summary) < len(TEXT) / 2


async def test_a_cause_is_what_follows_because() -> None:
    found = await run({"text": TEXT}, memory_extraction="causality_graph")
    (edge,) = [json.loads(note.content) for note in found.memory.notes.values()]
    assert (edge["cause"], edge["effect"]) == ("the valve was stuck", "The pump stopped")


async def test_a_text_without_causes_leaves_no_edge() -> None:
    found = await run({"text": "The cellar is painted white, and the roof is red."}, memory_extraction="causality_graph")
    assert found.memory.notes == {}


async def test_facts_are_sentences() -> None:
    found = await run("Yesterday Ada Lovelace repaired the pump. It runs again.", memory_extraction="structured_json")
    (note,) = found.memory.notes.values()
    assert json.loads(note.content)["facts"] == ["Yesterday Ada Lovelace repaired the pump.", "It runs again."]


async def test_notes_are_graded_by_the_words_that_they_share_with_the_task() -> None:
    found = await run("x", *NOTES, task="Is the valve of the pump stuck")
    (notes,) = [text for text in found.data if text.startswith("## Notes")]
    assert "valve of the pump" in notes
    assert "roof" not in notes


async def test_another_request_with_three_messages_is_answered_as_before() -> None:
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "The gate is red."}]
    asked = complete({"messages": [*messages, {"role": "user", "content": "What is red?"}]})
    assert asked.content == "The gate is red."
