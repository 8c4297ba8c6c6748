"""Effects, results and answers survive the way through JSON, and nothing else is accepted."""

import json
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.code_calls import Query
from spass.core.codec import decode_message, encode_message
from spass.core.effect_codec import decode_effect, decode_result
from spass.core.effects import (
    Answer,
    AssistantReply,
    CallError,
    CallTools,
    Cell,
    CellResult,
    Effect,
    FetchPage,
    ForeignResult,
    ForeignRun,
    Infer,
    Note,
    NoText,
    Page,
    Queries,
    Recalled,
    RecordResult,
    ReportStatus,
    RunCode,
    RunForeign,
    SearchNotes,
    SetState,
    StoreNote,
    ToolOutcome,
    VisibleAfter,
)
from spass.core.ids import ApprovalId
from spass.core.json import dump_line, read_object
from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolCall, ToolSpec

texts: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers: Final = st.floats(allow_nan=False, allow_infinity=False)
integers: Final = st.integers(-(2**53), 2**53)
values: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects: Final = st.dictionaries(texts | st.just("type"), values, max_size=3)
SCALARS: Final[dict[Any, st.SearchStrategy[Any]]] = {
    str: texts,
    bool: st.booleans(),
    int: integers,
    float: numbers,
    Json: values,
    ApprovalId: texts.map(ApprovalId),
}


def tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


calls: Final = st.builds(ToolCall, texts, texts, texts)
parts: Final = texts | st.builds(Image, texts, st.sampled_from([None, "auto", "low", "high"]))
messages: Final = st.builds(
    Message,
    st.sampled_from(Role),
    texts,
    tuples(calls),
    st.none() | texts,
    st.none() | texts,
    tuples(parts),
    st.booleans(),
    texts,
)
shows: Final = st.sampled_from([None, NoText()]) | st.builds(VisibleAfter, tuples(texts), tuples(texts))
infers: Final = st.builds(
    Infer,
    tuples(messages),
    st.sampled_from(["offered", "named", "none"]),
    optional(numbers),
    optional(integers),
    tuples(texts),
    optional(texts),
    st.booleans(),
    shows,
)
queries: Final = st.builds(Queries, optional(texts), numbers, integers, integers)
cells: Final = st.builds(Cell, texts, objects, optional(queries), st.booleans(), integers)
specs: Final = st.builds(
    ForeignRun,
    st.sampled_from(["openhands", "claude_code"]),
    texts,
    texts,
    texts,
    numbers,
    optional(tuples(texts)),
    texts,
)
effects: Final[st.SearchStrategy[Any]] = st.one_of(
    infers,
    st.builds(CallTools, tuples(calls), optional(texts)),
    st.builds(RecordResult, texts, texts),
    st.builds(ReportStatus, texts),
    st.builds(RunCode, cells, optional(texts)),
    st.builds(FetchPage, texts),
    st.builds(RunForeign, specs),
    st.builds(SearchNotes, texts, st.sampled_from(["key", "keyword", "semantic", "ends"]), integers),
    st.builds(StoreNote, texts, optional(texts), tuples(texts)),
    st.builds(SetState, values),
)
notes: Final = st.builds(Note, texts, texts, numbers, texts, tuples(texts))
errors: Final = st.builds(CallError, texts, texts)
answers: Final = st.builds(Answer, texts, st.none() | st.sampled_from(FinishReason), tuples(calls), objects)
replies: Final = st.builds(
    AssistantReply,
    texts,
    tuples(calls),
    st.sampled_from(FinishReason),
    st.builds(TokenUsage, integers, integers),
    optional(errors),
)
outcomes: Final = st.builds(
    ToolOutcome,
    calls,
    values,
    values,
    messages,
    integers,
    st.booleans(),
    tuples(values),
    optional(objects),
    tuples(texts.map(ApprovalId)),
    tuples(integers),
)
RESULTS: Final[dict[type, st.SearchStrategy[Any]]] = {
    Infer: replies,
    CallTools: tuples(outcomes),
    RecordResult: st.none(),
    ReportStatus: st.none(),
    SearchNotes: st.builds(Recalled, tuples(notes), optional(errors)),
    StoreNote: texts,
    SetState: st.none(),
    RunCode: st.builds(CellResult, texts, optional(texts), integers, optional(texts)),
    FetchPage: st.builds(Page, texts, optional(texts)),
    RunForeign: st.builds(ForeignResult, texts, tuples(values), objects),
}


def through_a_line(value: object) -> Json:
    """Return the JSON of ``value`` as the reader of a line receives it."""
    line = dump_line({"value": encode_message(value)})
    assert len(line.splitlines()) == 1
    return read_object(line)["value"]


@given(effects | answers)
def test_an_effect_or_an_answer_survives(effect: Effect | Answer) -> None:
    assert decode_effect(through_a_line(effect)) == effect


@given(st.data(), effects)
def test_a_result_survives(data: st.DataObject, effect: Effect) -> None:
    result = data.draw(RESULTS[type(effect)])
    assert decode_result(effect, through_a_line(result)) == result


def test_every_effect_has_a_strategy_here() -> None:
    assert set(get_args(Effect)) == set(RESULTS)


@given(st.builds(ToolSpec, texts, texts, objects, optional(st.booleans()), optional(texts)))
def test_the_description_of_a_tool_survives(spec: ToolSpec) -> None:
    assert decode_message(ToolSpec, through_a_line(spec), "spec") == spec


def test_fields_with_their_default_are_left_out() -> None:
    assert encode_message(Infer((Message(Role.USER, "x"),), show=NoText())) == {
        "type": "Infer",
        "messages": [{"type": "Message", "role": "user", "content": "x"}],
        "show": {"type": "NoText"},
    }


TELL: Final[dict[str, Json]] = {"type": "ReportStatus", "detail": "x"}
MESSAGE: Final[dict[str, Json]] = {"type": "Message", "role": "user", "content": "x"}
BAD_EFFECTS: Final[dict[str, Json]] = {
    "effect": None,
    "effect has": [],
    "effect has a": "ReportStatus",
    "effect has a wrong": {},
    "effect has a wrong value": {"type": "Delete"},
    "effect lacks": {"type": "ReportStatus"},
    "effect.detail": {"type": "ReportStatus", "detail": 1},
    "effect has the unknown field 'details'": {**TELL, "details": "x"},
    "effect has a wrong valu": {"type": "Query", "prompt": "x"},
    "effect.messages": {"type": "Infer", "messages": "x"},
    r"effect.messages\[1\]": {"type": "Infer", "messages": [MESSAGE, TELL]},
    r"effect.messages\[0\].role": {"type": "Infer", "messages": [{**MESSAGE, "role": "root"}]},
    r"effect.messages\[0\].data": {"type": "Infer", "messages": [{**MESSAGE, "data": 1}]},
    r"effect.messages\[0\].parts\[0\]": {"type": "Infer", "messages": [{**MESSAGE, "parts": [{"type": "Image", "url": 1}]}]},
    "effect.temperature": {"type": "Infer", "messages": [], "temperature": True},
    "effect.max_tokens": {"type": "Infer", "messages": [], "max_tokens": 1.5},
    "effect.tools": {"type": "Infer", "messages": [], "tools": "all"},
    "effect.aside": {"type": "Infer", "messages": [], "aside": "yes"},
    "effect.show": {"type": "Infer", "messages": [], "show": {"type": "Hide"}},
    "effect.cell.variables": {"type": "RunCode", "cell": {"type": "Cell", "code": "x", "variables": []}},
    "effect.metadata": {"type": "Answer", "content": "x", "metadata": None},
    "effect.finish_reason": {"type": "Answer", "content": "x", "finish_reason": "done"},
}


@pytest.mark.parametrize("message", BAD_EFFECTS)
def test_a_value_that_is_not_an_effect_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        decode_effect(BAD_EFFECTS[message])


@pytest.mark.parametrize("value", [None, {}, [], {"type": "Page"}, {"type": "AssistantReply"}, [{"type": "ToolOutcome"}]])
def test_a_result_of_another_effect_is_refused(value: Json) -> None:
    with pytest.raises(ValueError, match="result"):
        decode_result(RunCode(Cell("x")), value)


@given(effects, values)
def test_a_damaged_effect_is_refused_or_another_effect(effect: Effect, damage: Any) -> None:
    text = json.dumps(encode_message(effect))
    members = json.loads(text)
    members[sorted(members)[len(text) % len(members)]] = damage
    try:
        decoded = decode_effect(members)
    except ValueError:
        return
    assert isinstance(decoded, Effect | Answer)


def test_what_code_asks_for_is_not_an_effect() -> None:
    with pytest.raises(ValueError, match="wrong value"):
        decode_effect(encode_message(Query("x")))
