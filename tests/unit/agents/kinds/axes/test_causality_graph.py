"""Edges of causes and effects: what is read of a reply, and how an edge that is known is merged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds.axes.extraction import MAX_EDGES, MAX_END_BYTES, Edge
from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.core.json import dump, read_object
from spass.core.messages import Json
from tests.unit.agents.kinds.operator_world import OperatorRun, OperatorWorld, calling

RESULT = {"search": "The valve was stuck, so the pump stopped and the cellar was flooded."}
MAX_NOTE_BYTES = 4096
texts = st.text('a |\n"', max_size=20) | st.text(max_size=1500)
edges = st.builds(
    Edge.read,
    st.fixed_dictionaries(
        {"cause": st.sampled_from(["rust", "RUST ", "a  stuck\nvalve"]), "effect": st.sampled_from(["leak", "Leak", "no flow"])},
        optional={"confidence": st.none() | st.floats(0, 1) | st.booleans(), "evidence": texts},
    ),
)


async def run(*replies: str) -> OperatorRun:
    """Return a run that extracts edges of as many results as there are replies."""
    remaining = list(replies)
    agent = MonitorOperativeAgent(retrieval_strategy="none")
    return await OperatorWorld(calling(*["search"] * len(replies)), lambda _: remaining.pop(0), RESULT).run(agent)


def edge(cause: str, effect: str, **fields: Json) -> str:
    """Return a reply with one edge. Bars are escaped, because the scripted model splits its replies there."""
    return dump({"edges": [{"cause": cause, "effect": effect, **fields}]}).replace("|", "\\u007c")


@pytest.mark.anyio
async def test_a_repeated_edge_is_merged_whatever_its_case_and_blanks() -> None:
    found = await run(
        edge("Rust", "leak", confidence=0.4, evidence="It was wet."),
        edge("rust ", "LEAK", confidence=0.9, evidence="It was red."),
        edge("rust", " leak", confidence=0.1, evidence="It was wet."),
    )
    (note,) = found.memory.notes.values()
    assert json.loads(note.content) == {
        "cause": "Rust",
        "effect": "leak",
        "confidence": 0.9,
        "evidence": "It was wet. | It was red.",
    }
    assert note.ends == ("Rust", "leak")
    assert len(found.memory.written) == 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    "reply",
    [
        edge("rust", "leak"),
        f"Here you are:\n```json\n{edge('rust', 'leak')}\n```",
        '[{"cause": "rust", "effect": "leak"}]',
        '{"cause": "rust", "effect": "leak"}',
        '{"edges": [7, {"cause": ""}, {"cause": "rust", "effect": "leak", "confidence": "high", "evidence": 7}]}',
    ],
)
async def test_edges_are_read_in_every_usual_form(reply: str) -> None:
    found = await run(reply)
    (note,) = found.memory.notes.values()
    assert json.loads(note.content) == {"cause": "rust", "effect": "leak", "confidence": None, "evidence": ""}
    assert found.side_calls == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("", "empty_reply"),
        ("There are no causes.", "unreadable_reply"),
        ("{}", "unreadable_reply"),
        ('{"edges": {"cause": "rust"}}', "unreadable_reply"),
        ('{"edges": [{"cause": "rust"}, "leak", null]}', "unreadable_reply"),
        ('{"edges": [{"cause": "\\u200b", "effect": " "}]}', "unreadable_reply"),
        ('{"edges": [{"cause": "rust", "effect": "le', "unreadable_reply"),
        ("[" * 100_000, "unreadable_reply"),
        ('{"edges": ' + "[" * 70 + "]" * 70 + "}", "unreadable_reply"),
        ('{"edges": [' + "null," * 20_000 + "null]}", "unreadable_reply"),
        ('{"edges": [], "edges": [{"cause": "rust", "effect": "leak"}]}', "unreadable_reply"),
        ('{"edges": [{"cause": "rust", "effect": "leak", "confidence": 1e999}]}', "unreadable_reply"),
        ('{"edges": [{"cause": "rust", "effect": "leak", "confidence": ' + "9" * 10_000 + "}]}", "unreadable_reply"),
        ('{"edges": [{"cause": "rust", "effect": "leak", "evidence": "\\ud800"}]}', "unreadable_reply"),
    ],
)
async def test_a_reply_without_edges_keeps_nothing_and_is_named(reply: str, code: str) -> None:
    found = await run(reply)
    assert (found.memory.written, found.outcome.content) == ([], "Done.")
    assert found.side_calls == [("memory_extraction", code)]


@pytest.mark.anyio
async def test_a_result_without_causes_keeps_nothing_and_is_not_a_failure() -> None:
    found = await run('{"edges": []}')
    assert (found.memory.written, found.side_calls) == ([], [])


@pytest.mark.anyio
async def test_of_five_hundred_causes_the_first_ten_are_kept() -> None:
    found = await run(dump({"edges": [{"cause": f"cause {number}", "effect": "leak"} for number in range(500)]}))
    causes = [json.loads(note.content)["cause"] for note in found.memory.notes.values()]
    assert causes == [f"cause {number}" for number in range(MAX_EDGES)]
    assert found.side_calls == [("memory_extraction", "too_many_edges")]


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["state", "STATE", "note-1", "x" * 1_000_000, "a\x00b\x1b[8mc\u202ed\u0085e", "|" * 9, '"}]}'])
async def test_no_end_and_no_evidence_makes_another_key_or_a_long_note(end: str) -> None:
    found = await run(
        edge(end, "leak", key="state", content="x", evidence="e" * 1_000_000),
        edge("leak", end, confidence=-1e300, evidence="|x" * 500_000),
        edge(end, end, confidence=10**60, evidence=f"{end}|{end}"),
    )
    assert (found.outcome.content, found.side_calls) == ("Done.", [])
    assert len(found.memory.notes) == 3
    for note in found.memory.notes.values():
        assert (note.key[:5], len(note.key)) == ("edge:", 37)
        assert len(note.content.encode()) <= MAX_NOTE_BYTES
        assert all(text.isprintable() and len(text) <= MAX_END_BYTES for text in note.ends)
        assert json.loads(note.content)["confidence"] in (None, 0.0, 1.0)
    assert found.memory.states == [{"input": "Find the cause", "answer": "Done."}]


@given(edges, edges)
def test_merging_an_edge_again_changes_nothing(first: Edge, second: Edge) -> None:
    merged = second.merge(first)
    assert Edge.read(read_object(merged.keep().content)) == merged
    assert second.merge(merged) == merged
    assert first.merge(merged) == merged
    assert (merged.cause, merged.effect) == (first.cause, first.effect)


@given(
    st.fixed_dictionaries(
        {"cause": st.text(), "effect": st.text()}, optional={"confidence": st.floats() | st.text(), "evidence": st.text()}
    )
)
def test_every_edge_fits_in_a_note_and_is_read_from_it(item: dict[str, Any]) -> None:
    if (found := Edge.read(item)) is None:
        return
    keep = found.keep()
    assert len(keep.content.encode("utf-8", "surrogatepass")) <= MAX_NOTE_BYTES
    assert all(end.isprintable() and end for end in keep.ends)
    assert Edge.read(read_object(keep.content)) == found


@pytest.mark.parametrize("character", ['"', "\\", "ä", "🙂", "\n"])
def test_the_longest_edge_fits_in_a_note(character: str) -> None:
    found = Edge.read(
        {"cause": f"c{character * 9000}", "effect": f"e{character * 9000}", "evidence": character * 9000, "confidence": 0.1}
    )
    assert found is not None
    assert len(found.merge(found).keep().content.encode()) <= MAX_NOTE_BYTES


def test_edges_with_other_ends_have_other_keys() -> None:
    pairs = [("a", "b"), ("b", "a"), ("a b", ""), ("ab", "b"), ("a", "bb")]
    assert len({Edge(*pair).key for pair in pairs}) == len(pairs)
