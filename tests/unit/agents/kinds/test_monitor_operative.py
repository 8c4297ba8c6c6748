"""The kind ``monitor_operative``: every value of every axis is told from the others by calls, contexts and notes."""

import json
from itertools import product

import pytest

from spass.agents.kinds import AgentContext
from spass.agents.kinds.axes.compression import COMPRESSIONS
from spass.agents.kinds.axes.extraction import EXTRACTIONS
from spass.agents.kinds.axes.retrieval import RETRIEVALS
from spass.agents.kinds.monitor_operative import DECOMPOSITIONS, MONITOR_SYSTEM_PROMPT, MonitorOperativeAgent
from spass.agents.kinds.operative import OperativeAgent
from spass.core.effects import CallError, Infer, Note
from spass.core.errors import UpstreamError
from spass.core.events import Status
from spass.core.messages import Role, ToolSpec
from tests.unit.agents.driver_harness import ScriptedReply
from tests.unit.agents.kinds.operator_world import OperatorWorld, calling

pytestmark = pytest.mark.anyio

TEXT = "a" * 1399 + "b" * 3000 + "c" * 599  # with its quotes, it is 5,000 characters of JSON
EDGES = json.dumps({"edges": [{"cause": "rust", "effect": "leak", "confidence": 0.5, "evidence": "It was wet."}]})
SILENT = {
    "observation_compression": "none",
    "memory_extraction": "none",
    "retrieval_strategy": "none",
    "task_decomposition": "monolithic",
}


def agent(**axes: str) -> MonitorOperativeAgent:
    """Return an agent whose other axes do nothing."""
    return MonitorOperativeAgent(**{**SILENT, **axes})  # type: ignore[arg-type]


# --- observation_compression ---


async def test_summarize_asks_a_model_that_is_told_the_task() -> None:
    world = OperatorWorld(calling("search"), lambda _: "It is rusty.", {"search": TEXT})
    run = await world.run(agent(observation_compression="summarize"), "Why does it leak?")
    (aside,) = run.asides
    assert (aside.tools, aside.temperature, aside.max_tokens, aside.model) == ("none", 0, 512, None)
    instruction, task, result = aside.messages
    assert (instruction.role, instruction.data) == (Role.SYSTEM, False)
    assert (task.role, task.data) == (Role.USER, False)
    assert "Why does it leak?" in task.content
    assert (result.content, result.data) == (f'"{TEXT}"', True)
    assert run.results() == ["It is rusty."]
    (tool,) = run.outcome.tool_calls
    assert tool.result == TEXT
    assert [message.content for message in run.outcome.messages if message.role is Role.TOOL] == ["It is rusty."]
    assert run.outcome.metadata == {}


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("", "empty_reply"),
        (" \n ", "empty_reply"),
        ("y" * 5000, "not_shorter"),
        (UpstreamError("Down."), "upstream_error"),
        (ZeroDivisionError(), "internal_error"),
    ],
)
async def test_a_summary_that_fails_or_is_not_shorter_is_a_truncation(reply: str | Exception, code: str) -> None:
    failing = OperatorWorld(calling("search"), lambda _: reply, {"search": TEXT})
    run = await failing.run(agent(observation_compression="summarize"))
    truncated = await failing.run(agent(observation_compression="truncate"))
    assert run.results() == truncated.results()
    assert run.side_calls == [("observation_compression", code)]
    assert [event.detail for event in run.events if isinstance(event, Status)] == [
        f"A call for observation_compression failed ({code}). The run continues without it."
    ]
    assert truncated.asides == []


async def test_truncate_keeps_the_first_1400_and_the_last_600_characters() -> None:
    run = await OperatorWorld(calling("search"), results={"search": TEXT}).run(agent(observation_compression="truncate"))
    (seen,) = run.results()
    assert seen.startswith('"' + "a" * 1399 + "\n")
    assert seen.endswith("\n" + "c" * 599 + '"')
    assert "3000 characters" in seen
    assert "b" not in seen.replace("between", "").replace("dropped", "")
    assert run.asides == []


@pytest.mark.parametrize("value", COMPRESSIONS)
async def test_a_result_of_two_thousand_characters_is_not_compressed(value: str) -> None:
    world = OperatorWorld(calling("search", "more"), lambda _: "short", {"search": "x" * 1998, "more": "x" * 1999})
    run = await world.run(agent(observation_compression=value))
    first, second = run.results()
    assert first == f'"{"x" * 1998}"'
    assert (second == f'"{"x" * 1999}"') == (value == "none")
    assert len(run.asides) == (value == "summarize")


async def test_a_failed_call_is_compressed_but_nothing_of_it_is_kept() -> None:
    world = OperatorWorld(calling("failing"), lambda _: "It failed.", {"failing": "e" * 3000})
    run = await world.run(agent(observation_compression="summarize", memory_extraction="scratchpad"))
    assert (run.results(), run.memory.written) == (["It failed."], [])


# --- memory_extraction ---


async def test_scratchpad_keeps_the_tool_and_the_first_thousand_characters_without_a_call() -> None:
    run = await OperatorWorld(calling("search"), results={"search": TEXT}).run(agent(memory_extraction="scratchpad"))
    (note,) = run.memory.notes.values()
    assert note.content == f'search: "{TEXT[:999]}'
    assert run.asides == []


async def test_causality_graph_keeps_an_edge_under_both_ends() -> None:
    run = await OperatorWorld(calling("search"), lambda _: EDGES, {"search": TEXT}).run(
        agent(memory_extraction="causality_graph")
    )
    (note,) = run.memory.notes.values()
    assert json.loads(note.content) == {"cause": "rust", "effect": "leak", "confidence": 0.5, "evidence": "It was wet."}
    assert note.ends == ("rust", "leak")
    (aside,) = run.asides
    assert aside.messages[-1].content == f'"{TEXT}"'


async def test_structured_json_keeps_json_as_it_was_and_makes_entities_and_facts_of_text() -> None:
    facts = '{"entities": ["rust"], "facts": ["It leaks."]}'
    result = {"leak": [1, 2.5, None, True], "where": "at the lower valve of the second pump"}
    world = OperatorWorld(calling("json", "text"), lambda _: facts, {"json": result, "text": "It leaks. " * 10})
    run = await world.run(agent(memory_extraction="structured_json"))
    as_it_was, made = run.memory.notes.values()
    assert as_it_was.content == json.dumps(result, separators=(",", ":"))
    assert json.loads(made.content) == json.loads(facts)
    assert len(run.asides) == 1


@pytest.mark.parametrize("value", EXTRACTIONS)
@pytest.mark.parametrize("tool", ["failing", "think", "memory_store", "memory_search", "memory_read", "memory_write", "short"])
async def test_nothing_is_kept_of_failed_short_or_remembered_results(value: str, tool: str) -> None:
    results = {tool: {"text": "x" * (38 if tool == "short" else 200)}}  # with its key, 49 characters
    run = await OperatorWorld(calling(tool), lambda _: EDGES, results).run(agent(memory_extraction=value))
    assert (run.asides, run.memory.written) == ([], [])


@pytest.mark.parametrize("value", [value for value in EXTRACTIONS if value != "none"])
async def test_a_result_of_fifty_characters_is_worth_a_note(value: str) -> None:
    results = {"search": {"text": "x" * 39}}
    run = await OperatorWorld(calling("search"), lambda _: EDGES, results).run(agent(memory_extraction=value))
    assert len(run.memory.written) == 1


async def test_the_whole_result_is_extracted_also_if_it_is_compressed() -> None:
    axes = {"observation_compression": "truncate", "memory_extraction": "causality_graph"}
    run = await OperatorWorld(calling("search"), lambda _: EDGES, {"search": TEXT}).run(agent(**axes))
    assert run.asides[0].messages[-1].content == f'"{TEXT}"'
    assert run.results() != [f'"{TEXT}"']


# --- retrieval_strategy ---

NOTES = (
    Note("edge:1", "rust causes the leak", ends=("rust", "leak"), created_at="2026-01-01T00:00:00.000Z"),
    Note("plain", "the leak is small"),
    Note("neighbour", "water comes from elsewhere", ends=("leak", "water")),
    Note("unrelated", "nothing to see"),
)


def recalled(data: list[str]) -> list[str]:
    """Return the keys of the notes in the prompt."""
    return [json.loads(line)["key"] for text in data for line in text.split("\n")[2:] if text.startswith("## Notes")]


@pytest.mark.parametrize("value", ["keyword", "semantic"])
async def test_one_search_recalls_notes_and_the_neighbours_of_edges(value: str) -> None:
    run = await OperatorWorld(notes=NOTES).run(agent(retrieval_strategy=value), "leak")
    assert recalled(run.data) == ["edge:1", "plain", "neighbour"]
    assert run.asides == []
    assert "2026-01-01T00:00:00.000Z" in run.data[0]


@pytest.mark.parametrize("value", ["keyword", "semantic"])
async def test_one_search_recalls_at_most_eight_notes(value: str) -> None:
    notes = [Note(f"n{number}", "leak") for number in range(20)]
    run = await OperatorWorld(notes=notes).run(agent(retrieval_strategy=value), "leak")
    assert recalled(run.data) == [f"n{number}" for number in range(8)]


async def test_at_most_eight_neighbours_are_recalled() -> None:
    edges = [Note(f"e{number}", "other words", ends=("leak", f"effect {number}")) for number in range(20)]
    run = await OperatorWorld(notes=[NOTES[0], *edges]).run(agent(retrieval_strategy="keyword"), "rust")
    assert recalled(run.data) == ["edge:1", *(f"e{number}" for number in range(8))]


async def test_only_notes_with_grade_two_or_more_are_recalled() -> None:
    def grade(effect: Infer) -> str:
        numbered = [json.loads(line) for line in effect.messages[-1].content.split("\n")]
        grades = {
            str(entry["note"]): 3 if "rust" in entry["content"] else 2 if "small" in entry["content"] else 1 for entry in numbered
        }
        return json.dumps({"grades": grades})

    run = await OperatorWorld(notes=NOTES, aside=grade).run(agent(retrieval_strategy="hybrid_with_self_eval"), "the leak to see")
    assert recalled(run.data) == ["edge:1", "plain", "neighbour"]
    (aside,) = run.asides
    assert (aside.temperature, aside.messages[-1].data) == (0, True)


async def test_fewer_than_two_useful_notes_cause_one_more_round_with_the_better_query() -> None:
    replies = iter(['{"grades": [0, 3], "better_query": "water"}', '```json\n{"grades": {"1": 2}, "better_query": "more"}\n```'])
    world = OperatorWorld(notes=NOTES, aside=lambda _: next(replies))
    run = await world.run(agent(retrieval_strategy="hybrid_with_self_eval"), "leak")
    assert recalled(run.data) == ["plain", "neighbour"]
    assert len(run.asides) == 2


@pytest.mark.parametrize(
    "reply", ['{"grades": [3, 3], "better_query": "water"}', '{"grades": [0, 0]}', '{"grades": [0, 0], "better_query": "Leak"}']
)
async def test_there_is_no_second_round_without_need_or_without_a_better_query(reply: str) -> None:
    run = await OperatorWorld(notes=NOTES, aside=lambda _: reply).run(agent(retrieval_strategy="hybrid_with_self_eval"), "leak")
    assert len(run.asides) == 1
    assert run.side_calls == []


async def test_without_notes_the_hybrid_retrieval_makes_no_call() -> None:
    run = await OperatorWorld(notes=NOTES).run(agent(retrieval_strategy="hybrid_with_self_eval"), "pump")
    assert (run.asides, run.data) == ([], [])


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("", "empty_reply"),
        ("I like the first.", "unreadable_reply"),
        ('{"grades": [1]}', "unreadable_reply"),
        ('{"grades": {"a": 3}}', "unreadable_reply"),
        ('{"grades": {"1": 7, "2": true, "3": "3"}}', "unreadable_reply"),
        (UpstreamError("Down."), "upstream_error"),
    ],
)
async def test_unreadable_grades_leave_the_first_eight_notes(reply: str | Exception, code: str) -> None:
    notes = [Note(f"n{number}", "leak") for number in range(20)]
    run = await OperatorWorld(notes=notes, aside=lambda _: reply).run(agent(retrieval_strategy="hybrid_with_self_eval"), "leak")
    assert recalled(run.data) == [f"n{number}" for number in range(8)]
    assert run.side_calls == [("retrieval_strategy", code)]


@pytest.mark.parametrize(("value", "found"), [("semantic", []), ("hybrid_with_self_eval", ["edge:1", "plain", "neighbour"])])
async def test_without_the_embedding_model_only_the_search_by_words_finds_notes(value: str, found: list[str]) -> None:
    error = CallError("upstream_error", "The embedding model failed.")
    world = OperatorWorld(notes=NOTES, aside=lambda _: '{"grades": [3, 3]}', error=error)
    run = await world.run(agent(retrieval_strategy=value), "leak")
    assert recalled(run.data) == found
    assert run.side_calls == [("retrieval_strategy", "upstream_error")]


# --- task_decomposition ---


async def test_the_decompositions_differ_in_the_prompt_and_in_nothing_else() -> None:
    runs = {
        value: await OperatorWorld(calling("search"), notes=NOTES).run(agent(task_decomposition=value))
        for value in DECOMPOSITIONS
    }
    assert len({run.prompt for run in runs.values()}) == 3
    assert runs["monolithic"].prompt == MONITOR_SYSTEM_PROMPT
    assert "phases" in runs["phased"].prompt
    assert "sub-tasks" in runs["hierarchical"].prompt
    for run in runs.values():
        assert run.prompt.startswith(MONITOR_SYSTEM_PROMPT)
        assert [effect.messages[1:] for effect in run.own] == [effect.messages[1:] for effect in runs["phased"].own]
        assert (run.outcome.content, run.memory.states) == ("Done.", runs["phased"].memory.states)


# --- all axes ---


async def test_it_sets_and_recalls_the_state_like_an_operative() -> None:
    world = OperatorWorld(state="It was dry.", notes=NOTES)
    monitor, operative = await world.run(agent(retrieval_strategy="keyword"), "leak"), await world.run(OperativeAgent(), "leak")
    assert monitor.data[-1] == operative.data[-1] == "## Previous state\n\nIt was dry."
    assert monitor.own[0].messages[-1] == operative.own[0].messages[-1]
    assert monitor.memory.states == operative.memory.states == [{"input": "leak", "answer": "Done."}]


async def test_neither_notes_nor_state_reach_the_system_prompt() -> None:
    world = OperatorWorld(calling("search"), lambda _: "", {"search": TEXT}, NOTES, "It was dry.")
    run = await world.run(MonitorOperativeAgent(system_prompt="Be brief."), "leak")
    assert run.prompt.startswith("Be brief.\n\n")
    assert not [text for text in ("rust", "small", "dry", "aaa") if text in run.prompt]
    for effect in (*run.own, *run.asides):
        assert all(message.data for message in effect.messages if message.role is Role.USER and "rust causes" in message.content)


async def test_the_prompt_names_the_tools() -> None:
    context = AgentContext(
        specs=(ToolSpec("search", "Search the manuals.\nMore text.", {}), ToolSpec("clock", "Tell the time.", {}))
    )
    run = await OperatorWorld().run(agent(), context=context)
    assert run.prompt == f"{MONITOR_SYSTEM_PROMPT}\n\nYour tools:\n- search: Search the manuals.\n- clock: Tell the time."


async def test_every_combination_runs() -> None:
    replies = [ScriptedReply("I look.", ("search", "clock")), ScriptedReply("I look again.", ("search",)), ScriptedReply("Done.")]
    for axes in product(COMPRESSIONS, EXTRACTIONS, RETRIEVALS, DECOMPOSITIONS):
        values: dict[str, str] = dict(zip(SILENT, axes, strict=True))
        run = await OperatorWorld(replies, lambda _: EDGES, {"search": TEXT}, NOTES).run(agent(**values), "leak")
        assert (run.outcome.content, run.outcome.turns) == ("Done.", 3)
        summaries = 2 * (values["observation_compression"] == "summarize")
        extractions = 2 * (values["memory_extraction"] in ("causality_graph", "structured_json"))
        assert len(run.asides) == summaries + extractions + (values["retrieval_strategy"] == "hybrid_with_self_eval"), axes


def test_it_has_the_defaults_of_its_page() -> None:
    agent = MonitorOperativeAgent()
    assert (agent.max_turns, agent.temperature, agent.max_tokens, agent.operator_id) == (25, 0.3, 4096, None)
    assert (agent.memory_extraction, agent.observation_compression) == ("causality_graph", "summarize")
    assert (agent.retrieval_strategy, agent.task_decomposition) == ("hybrid_with_self_eval", "phased")
    assert agent.remembers
