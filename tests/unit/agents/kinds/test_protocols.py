"""Replies in a text protocol are parsed to what the model said, whatever it does with the markers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds.markers import ShowFilter
from spass.agents.kinds.protocols import (
    REACT,
    STRUCTURED,
    ParsedReply,
    Protocol,
    WrittenCall,
    history_as_text,
    parse_reply,
    write_call,
)
from spass.core.effects import user
from spass.core.messages import Message, Role, ToolCall

PROTOCOLS = pytest.mark.parametrize("protocol", [REACT, STRUCTURED], ids=["react", "structured"])
MARKERS = "Thought:|Action:|Action Input:|Final Answer:|Observation:|TOOL:|INPUT:|FINAL_ANSWER:|**Action:**|```|```json"
SIGNS = "\n|\n|\n| |x|{}|{|\t|calculator"
PARTS = (*MARKERS.split("|"), *SIGNS.split("|"))
REPLIES = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=16).map("".join)


def said_in(protocol: Protocol, text: str) -> str:
    """Return ``text``, which has the markers of ReAct, with those of ``protocol``."""
    if protocol is REACT:
        return text
    for marker, other in (("Action Input:", "INPUT:"), ("Action:", "TOOL:"), ("Final Answer:", "FINAL_ANSWER:")):
        text = text.replace(marker, other)
    return text


def call(name: str, text: str = "{}", said: str = "", *, is_marked: bool = True) -> ParsedReply:
    return ParsedReply(call=WrittenCall(name, text, is_marked), text=said)


@PROTOCOLS
@pytest.mark.parametrize(
    ("reply", "parsed"),
    [
        ("Thought: I need it\nAction: add\nAction Input: {}", call("add", said="I need it")),
        ("Let me see.\nThought: I need it\nAction: add\nAction Input: {}", call("add", said="Let me see.\nI need it")),
        ("**Thought:** I need it\n\n**Action:** `add`\n\n**Action Input:** {}", call("add", said="I need it")),
        ("**Action: add**\n**Action Input: {}**", call("add")),
        ("### Thought: I\n### Action: add\n### Action Input:\n{}\n", call("add", said="I")),
        ("```\nThought: I\nAction: add\nAction Input: {}\n```", call("add", "{}\n```", said="I")),
        ("Action: [add]\nAction Input: 2\n3", call("add", "2\n3")),
        ("Thought: I\r\nAction: add\r\nI wait.\r\nAction Input: {}\r\n", call("add", said="I")),
        ("Action: add()", call("add", "", is_marked=False)),
        ("Action:\n  add\nI wait.\nThought: x\nAction Input: {}", call("add")),
        ("Action: add\n```\n{}\n```", call("add", "```\n{}\n```", is_marked=False)),
        ("Action: the tool for adding\nAction Input: {}", call("the tool for adding")),
        ("Action: first\nAction Input: {}\nThought: b\nAction: second\nAction Input: [1]", call("first")),
        ("Action: first\nAction: second\nAction Input: {}", call("first", "", is_marked=False)),
        ("Action:\nAction: second\nAction Input: {}", call("second")),
        ("Action: add\nAction Input: {}\nObservation: 5\nFinal Answer: 5", call("add")),
        ("Action: add\nAction Input: {}\nFinal Answer: 5", ParsedReply("5")),
        ("Final Answer: 5\nAction: add\nAction Input: {}", ParsedReply("5\nAction: add\nAction Input: {}")),
        ("Final Answer: 5\nObservation: 6", ParsedReply("5")),
        ("Final Answer:", ParsedReply("")),
    ],
)
def test_a_reply_with_markers_is_a_call_or_an_answer(protocol: Protocol, reply: str, parsed: ParsedReply) -> None:
    expected = parsed if parsed.answer is None else ParsedReply(said_in(protocol, parsed.answer))
    assert parse_reply(said_in(protocol, reply), protocol) == expected


def odd_case(text: str) -> str:
    return "".join(letter.upper() if place % 2 else letter.lower() for place, letter in enumerate(text))


@PROTOCOLS
@pytest.mark.parametrize("spelling", [str.upper, str.lower, str.title, odd_case])
def test_markers_are_read_in_any_case(protocol: Protocol, spelling: type[str]) -> None:
    thought, action, given, final = map(spelling, (protocol.thought, protocol.action, protocol.input, protocol.final))
    assert parse_reply(f"{thought} A\n{action} add\n{given} {{}}", protocol) == call("add", said="A")
    assert parse_reply(f"{thought} A\n{final} b", protocol) == ParsedReply("b")


@PROTOCOLS
@pytest.mark.parametrize(
    "reply",
    [
        "Hello there.",
        "I take the Action: add it. The Final Answer: none. No Observation: here.",
        "- Action: buy milk\n- Thought: fine",
        "```py\nx = 1\n```",
        "``` unpaired",
        "Input: 3\n  Output: 4\nInput: 5",
        "",
    ],
)
def test_a_reply_without_markers_is_the_answer(protocol: Protocol, reply: str) -> None:
    assert parse_reply(f"\n{reply} \n", protocol).answer == reply


@PROTOCOLS
@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Thought: It is 4.", "It is 4."),
        ("So.\nThought: It is 4.\nThought: Or 5.\n", "So.\nIt is 4.\nOr 5."),
        ("```\nThought: It is 4.\n", "It is 4."),
        ("It is 4.\nObservation: yes\nmore", "It is 4."),
        ("**Thought: It is 4.**", "**It is 4.**"),
    ],
)
def test_a_thought_alone_is_the_answer(protocol: Protocol, reply: str, answer: str) -> None:
    assert parse_reply(reply, protocol).answer == answer


@PROTOCOLS
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("Observation: 4\nFinal Answer: 4", ""),
        ("Thought:", ""),
        ("Action:", ""),
        ("Thought: x\nAction: ``", "x"),
        ("Thought: x\nAction Input: {}", "x\nAction Input: {}"),
        ("Action Input: {}\nAction: add", "Action Input: {}"),
    ],
)
def test_markers_that_form_no_call_are_not_an_answer(protocol: Protocol, reply: str, said: str) -> None:
    parsed = parse_reply(said_in(protocol, reply), protocol)
    assert (parsed.answer, parsed.call) == (None, None)
    assert parsed.text.splitlines()[:1] == said_in(protocol, said).splitlines()[:1]


@given(REPLIES, st.sampled_from([REACT, STRUCTURED]), st.integers(0, 60))
def test_what_is_shown_is_the_start_of_the_answer(reply: str, protocol: Protocol, border: int) -> None:
    show_filter = ShowFilter(protocol.show)
    early = show_filter.feed(reply[:border])
    shown = early + show_filter.feed(reply[border:]) + show_filter.flush()
    parsed = parse_reply(reply, protocol)
    assert (parsed.answer or "").startswith(early)
    assert shown in {"", parsed.answer}
    assert parsed.answer is None or parsed.call is None


@given(
    st.text("ab c.", max_size=20).map(str.strip),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3).map(lambda value: str(value).replace("'", '"')),
    st.sampled_from([REACT, STRUCTURED]),
)
def test_a_call_written_as_text_is_read_as_the_same_call(said: str, name: str, arguments: str, protocol: Protocol) -> None:
    if "\n" not in arguments:
        assert parse_reply(write_call(said, name, arguments, protocol), protocol) == call(name, arguments, said)


@PROTOCOLS
def test_a_history_with_tools_becomes_text_in_order(protocol: Protocol) -> None:
    calls = (ToolCall("c1", "add", '{"a": 1}'), ToolCall("c2", "now", "{}"))
    history = (
        user("Summary.", data=True),
        user("Add."),
        Message(Role.ASSISTANT, "I look.", calls),
        Message(Role.TOOL, "2", tool_call_id="c1"),
        Message(Role.TOOL, "noon", tool_call_id="c2"),
        Message(Role.ASSISTANT, ""),
        Message(Role.ASSISTANT, "It is 2."),
        user("Thanks."),
    )
    assert history_as_text(history, protocol) == (
        user("Summary.", data=True),
        user("Add."),
        Message(Role.ASSISTANT, f'{protocol.thought} I look.\n{protocol.action} add\n{protocol.input} {{"a": 1}}'),
        user("Observation: 2", data=True),
        Message(Role.ASSISTANT, f"{protocol.action} now\n{protocol.input} {{}}"),
        user("Observation: noon", data=True),
        Message(Role.ASSISTANT, f"{protocol.final} It is 2."),
        user("Thanks."),
    )


def test_a_result_without_its_call_stays_an_observation() -> None:
    assert history_as_text([Message(Role.TOOL, "2", tool_call_id="lost")], REACT) == (user("Observation: 2", data=True),)
