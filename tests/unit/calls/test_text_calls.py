"""Tool calls that a model writes as JSON text: what is a call, what stays text, and when text is shown."""

import ast
import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from spass.calls.text_calls import MAX_CHARACTERS, TextCallReader, text_call_reader
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCallDelta, ToolSpec
from spass.models.types import ChatDelta, ChatReply, ChatRequest, NamedTool, ToolChoice
from spass.tenancy.config import ModelConfig
from tests.unit.collected_replies import collect_deltas

NAMES = ("add", "weather")
ADD = '{"name": "add", "parameters": {"a": 1, "b": [2, {"c": "}]\\""}]}}'
ADDED = ("add", {"a": 1, "b": [2, {"c": '}]"'}]})
WEATHER = '{"type":"function","function":{"name":"weather","arguments":"{\\"city\\": \\"Köln\\"}"}}'
WEATHERED = ("weather", {"city": "Köln"})

CALLS = {
    ADD: [ADDED],
    '{"name": "add", "arguments": {}}': [("add", {})],
    '{"arguments": {"a": 1}, "name": "add"}': [("add", {"a": 1})],
    '{"name": "add", "arguments": "{\\"a\\": 1}"}': [("add", {"a": 1})],
    WEATHER: [WEATHERED],
    '{"type": "function", "function": {"parameters": {"city": "Köln"}, "name": "weather"}}': [WEATHERED],
    '{"type": "function", "name": "weather", "parameters": {"city": "Köln"}, "id": "call_7"}': [WEATHERED],
    '{"n\\u0061me": "we\\u0061ther", "parameters": {"city": "K\\u00f6ln"}}': [WEATHERED],
    f"[{ADD}]": [ADDED],
    f"\n [ {ADD} ,\t{WEATHER}]\r\n": [ADDED, WEATHERED],
    f'{{"tool_calls": [{WEATHER}, {ADD}]}}': [WEATHERED, ADDED],
    f"```json\n{ADD}\n```": [ADDED],
    f"```\n{ADD}\n```\n": [ADDED],
    f"  ~~~tool_call \r\n[{ADD},{ADD}]~~~": [ADDED, ADDED],
    f"```{ADD}```": [ADDED],
    # One after the other
    f"{ADD}{ADD}": [ADDED, ADDED],
    f"{ADD}; {WEATHER}": [ADDED, WEATHERED],
    f"{ADD},\n[{WEATHER}]\n{ADD}": [ADDED, WEATHERED, ADDED],
    f"```json\n{ADD}\n{WEATHER}\n```\n\n~~~\n{ADD}~~~": [ADDED, WEATHERED, ADDED],
    # Hermes, Qwen
    f"<tool_call>\n{ADD}\n</tool_call>": [ADDED],
    f"<tool_call>{ADD}</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>\n": [ADDED, WEATHERED],
    f"<tools>\n{ADD}\n{WEATHER}</tools>": [ADDED, WEATHERED],
    "<Tool_Call>[weather(city='Köln')]</TOOL_CALL>": [WEATHERED],
    # Llama 4
    '[weather(city="Köln")]': [WEATHERED],
    "[add(), weather( city = 'Köln', ) ]": [("add", {}), WEATHERED],
    '[add(a=-1.5e-3, b=[True, (None, 2)], c={\'x\': "\'", "y": {}})]': [
        ("add", {"a": -0.0015, "b": [True, [None, 2]], "c": {"x": "'", "y": {}}})
    ],
    '```python\n[add(a=\'it\\\'s\', b="""one\n"two" 3""", c=\'a\' "b")]\n```': [
        ("add", {"a": "it's", "b": 'one\n"two" 3', "c": "ab"})
    ],
    r"[add(a='\d+ \\ \x41 \n')]": [("add", {"a": "\\d+ \\ A \n"})],
    "[add(from=1, a='')]": [("add", {"from": 1, "a": ""})],
}
IN_WORDS = {
    f"I look it up.\n```json\n{WEATHER}\n```\nOne moment.": ("I look it up.\n", [WEATHERED], "\nOne moment."),
    f"I look it up:\n\n```\n[add()]\n{ADD}``` \n": ("I look it up:\n\n", [("add", {}), ADDED], "\n"),
    f"```json\n{ADD}\n```\nDone.": ("", [ADDED], "\nDone."),
    f"~~~ \n[{ADD}]\n~~~\nAs `{ADD}` ``` in a line": ("", [ADDED], f"\nAs `{ADD}` ``` in a line"),
    f"{ADD} is the call:\n```json\n{WEATHER}\n```": (f"{ADD} is the call:\n", [WEATHERED], ""),
    f"```\n{ADD}\n```\n{{": ("", [ADDED], "\n{"),
    f'```\n{ADD}\n```\n{{"name": "add", "arguments": {{"a": ]}}}}': ("", [ADDED], '\n{"name": "add", "arguments": {"a": ]}}'),
    f"``\n`~~\n```json\n{ADD}\n```": ("``\n`~~\n", [ADDED], ""),
}
TEXTS = [
    "",
    "\n",
    "Hello there.",
    f"I call it: {ADD}",
    f"{ADD} Done.",
    f"{ADD};",
    f"{ADD};;{ADD}",
    f"<b>{ADD}",
    "I call it: [add(a=1)]",
    f"I call it:\n<tool_call>{ADD}</tool_call>",
    f"<tool_call>{ADD}</tool_call> Done.",
    f"<tool_call>{ADD}",
    f"<tool_call>{ADD}</tools>",
    "<tool_call></tool_call>",
    f"<tool_call>```{ADD}```</tool_call>",
    f"Two ways:\n```json\n{ADD}\n```\nor\n```json\n{WEATHER}\n```\n",
    f"Two ways:\n```python\nprint()\n```\nor\n```json\n{ADD}\n```\n",
    f"Like this: ```json\n{ADD}\n```",
    f"Like this:\n```json {ADD}\n```",
    f"Like this:\n ```json\n{ADD}\n```",
    f"Like this:\n```json\n{ADD}\n``` here",
    f"Like this:\n````json\n{ADD}\n````",
    f"Like this:\n```json\n{ADD}\n",
    f"Hm.<think>\n```json\n{ADD}\n```\n</think>No.",
    f"Hm.\n```json\n{ADD}\n```\n</think>No.",
    *(
        f"{begin}It says:\n```json\n{ADD}\n```\n{end}"
        for begin, end in (
            ("   ```text\n", "   ```\nI will not do it."),
            ("Hm.\n ~~~\n", ""),
            ("", "and\n ```json\n{}\n ```"),
            ("<seed:think>", "No.</seed:think>No."),
            ("[THINK]", "[/THINK]No."),
            ("", "[/think]No."),
            ("<!-- ", "-->"),
            ("<pre>", "</pre>"),
            ("", "</data>"),
        )
    ),
    "[add]",
    "[add](https://example.org)",
    "[adder(a=1)]",
    "[print(a=1)]",
    "[add(1)]",
    "[add(a=1, a=2)]",
    "[add(a=b)]",
    "[add(a=add())]",
    "[add(a=1+1)]",
    "[add(a=--1)]",
    "[add(a={1})]",
    "[add(a={(): 1})]",
    "[add(a=f'{1}')]",
    "[add(a=b'x')]",
    "[add(a='x\ny')]",
    "[add(a='x)]",
    "[add(a=...)]",
    "[add(a=1j)]",
    "[add(a=1e999)]",
    "[add(a=[1 2])]",
    "[add(a=" + "[" * 70 + "]" * 70 + ")]",
    "[add(a=" + "7" * 100 + ")]",
    "[add(**{})]",
    "[add(a=1) if True else 2]",
    "[add(a=1), 5]",
    "add(a=1)",
    f"```json\n{ADD}",
    f"```json\n{ADD}\n~~~",
    f"```json\n{ADD}\n``",
    f"```json\nCall: {ADD}\n```",
    f"``{ADD}``",
    "```python\nprint({})\n```",
    "{}",
    "[]",
    "[[]]",
    "[1] A source.",
    f"[{ADD}",
    f"[{ADD},]",
    f"[[{ADD}]]",
    f"[{ADD}, 5]",
    '{"tool_calls": []}',
    f'{{"tool_calls": {ADD}}}',
    f'{{"tool_calls": [{ADD}], "id": "x"}}',
    f'{{"tool_calls": [{{"tool_calls": [{ADD}]}}]}}',
    '{"answer": 42}',
    '{"name": "add"}',
    '{"name": "Anna", "arguments": {}}',
    '{"name": "adder", "arguments": {}}',
    '{"name": "", "arguments": {}}',
    '{"name": 5, "arguments": {}}',
    '{"name": "add\\ud800", "arguments": {}}',
    '{"name": "add", "arguments": null}',
    '{"name": "add", "arguments": [1]}',
    '{"name": "add", "arguments": "1"}',
    '{"name": "add", "arguments": "a = 1"}',
    '{"name": "add", "arguments": {a: 1}}',
    '{"name": "add", "arguments": {"a": NaN}}',
    '{"name": "add", "arguments": {"a": 1, "a": 2}}',
    '{"name": "add", "arguments": {"a": [}]}}',
    '{"name": "add", "arguments": {"a": ' + "[" * 70 + "]" * 70 + "}}",
    '{"name": "add", "arguments": {}, "parameters": {}}',
    '{"name": "add", "name": "add", "arguments": {}}',
    '{"name": "add", "arguments": {}, "comment": ""}',
    '{"name": "add", "arguments": {},}',
    '{"name": "add", "arguments": {}',
    '{"name": "add" "arguments": {}}',
    '{"type": "tool", "name": "add", "arguments": {}}',
    '{"type": "function", "function": {"name": "add"}}',
    '{"type": "function", "function": "add", "arguments": {}}',
    '{"name": "add", "function": {"name": "add", "arguments": {}}}',
    "{'name': 'add', 'arguments': {}}",
]


def read(pieces: Sequence[str], reason: FinishReason | None = FinishReason.STOP, **options: Any) -> ChatReply:
    reader = TextCallReader(NAMES, **options)
    deltas = [reader.feed(ChatDelta(piece)) for piece in pieces]
    deltas += [reader.feed(ChatDelta(finish_reason=reason))] if reason else []
    return collect_deltas([*deltas, reader.flush()])


def outcome(pieces: Sequence[str], reason: FinishReason | None = FinishReason.STOP, **options: Any) -> tuple[str, object, str]:
    """Return the text, the calls and the finish reason of a reply that arrives in ``pieces``."""
    reply = read(pieces, reason, **options)
    calls = [(call.name, json.loads(call.arguments)) for call in reply.message.tool_calls]
    return reply.message.content, calls, reply.finish_reason.value


@pytest.mark.parametrize("text", CALLS)
def test_a_reply_of_calls_becomes_calls_wherever_it_is_cut(text: str) -> None:
    expected = ("", CALLS[text], "tool_calls")
    for at in range(len(text) + 1):
        assert outcome([text[:at], text[at:]]) == expected
    assert outcome([*text], None) == outcome([text], None) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_any_other_reply_stays_text_wherever_it_is_cut(text: str) -> None:
    for at in range(len(text) + 1):
        assert outcome([text[:at], text[at:]]) == (text, [], "stop")
    assert outcome([*text]) == outcome([*text], None) == (text, [], "stop")


@pytest.mark.parametrize("text", IN_WORDS)
def test_the_only_fenced_block_between_words_becomes_calls_wherever_it_is_cut(text: str) -> None:
    before, calls, after = IN_WORDS[text]
    expected = (before + after, calls, "tool_calls")
    for at in range(len(text) + 1):
        assert outcome([text[:at], text[at:]]) == expected
    assert outcome([*text], None) == outcome([text], None) == expected
    assert outcome([text], FinishReason.LENGTH) == (text, [], "length")


@pytest.mark.parametrize("text", [text for text in IN_WORDS if not text.startswith(("~", "```", "{"))])
def test_words_before_a_block_are_shown_at_once_and_the_others_at_the_end(text: str) -> None:
    before, _, after = IN_WORDS[text]
    reader = TextCallReader(NAMES)
    assert "".join(reader.feed(ChatDelta(character)).content for character in text) == before
    assert reader.feed(ChatDelta(finish_reason=FinishReason.STOP)).content == after


def test_words_are_not_delayed() -> None:
    reader = TextCallReader(NAMES)
    deltas = [ChatDelta(word) for word in ("Yes.", "\n", "\n- one", "\n", " `x`", "\n", "~ 2", "\n\n", "``x``", "\n", "#")]
    assert [reader.feed(delta) for delta in deltas] == deltas
    assert [reader.feed(ChatDelta(piece)).content for piece in ("\n`", "`", "a", "\n``", "`", "js", "\n", "x")] == [
        *("\n", "", "``a", "\n", "", "", "", "```js\nx"),
    ]


@pytest.mark.parametrize("text", CALLS)
def test_nothing_of_a_call_is_shown_while_it_arrives(text: str) -> None:
    reader = TextCallReader(NAMES)
    assert [reader.feed(ChatDelta(character)) for character in text] == [ChatDelta()] * len(text)


@pytest.mark.parametrize(
    ("held", "next_character"),
    [
        ("", "H"),
        (" \n", "-"),
        ("``", " "),
        ("```python\n", "d"),
        ("[", "1"),
        ("[", "]"),
        ("{", "}"),
        ('{"a', "n"),
        ('{"tool_', "x"),
        ('{"name": "a', "n"),
        ('{"name": ', "5"),
        ('{"type": "f', "o"),
        ('{"name": "add", "arguments": ', "["),
        ("<th", "e"),
        (ADD, "."),
        (f"[{ADD}, ", "]"),
        (f"```json\n{ADD}\n```\nDone.\n``", "`"),
        (f"```json\n{ADD}\n```\nI <", "/"),
        (f"```json\n{ADD}\n```\nI [/thin", "k]"),
        (f"```json\n{ADD}\n```\nI\n   ``", "`"),
        ("[add", "i"),
        ("[add(a", ","),
        ("[add(a=", "b"),
        ("[add(a='x", "\n"),
        ("[add(a=1", "+"),
        ("<tool_call>", "I"),
    ],
)
def test_text_is_released_at_the_first_character_that_no_call_has(held: str, next_character: str) -> None:
    reader = TextCallReader(NAMES)
    assert "".join(reader.feed(ChatDelta(character)).content for character in held) == ""
    assert reader.feed(ChatDelta(next_character)).content == held + next_character
    assert reader.feed(ChatDelta(ADD)).content == ADD


def test_text_that_begins_unlike_a_call_is_passed_on_unchanged() -> None:
    reader = TextCallReader(NAMES)
    deltas = [ChatDelta(word) for word in ("It", " is", " {", '"name"', ": ", "[", " ```json\n", ADD)]
    assert [reader.feed(delta) for delta in deltas] == deltas


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
def test_a_reply_that_was_cut_off_stays_text(reason: FinishReason) -> None:
    assert outcome([ADD], reason) == (ADD, [], reason.value)
    assert outcome([ADD[:20]], reason) == (ADD[:20], [], reason.value)


def test_a_finish_reason_of_the_provider_for_calls_stays() -> None:
    assert outcome([ADD], FinishReason.TOOL_CALLS) == ("", [ADDED], "tool_calls")


def test_a_whole_reply_in_one_delta_keeps_its_usage_and_cost() -> None:
    whole = ChatDelta(ADD, (), FinishReason.STOP, TokenUsage(3, 4), Decimal("0.5"), reasoning_characters=7)
    delta = TextCallReader(NAMES).feed(whole)
    assert (delta.content, delta.finish_reason) == ("", FinishReason.TOOL_CALLS)
    assert (delta.usage, delta.cost_usd, delta.reasoning_characters) == (TokenUsage(3, 4), Decimal("0.5"), 7)
    assert [call.name for call in delta.tool_calls] == ["add"]


def test_deltas_after_the_finish_reason_are_passed_on() -> None:
    reader = TextCallReader(NAMES)
    assert reader.feed(ChatDelta(ADD, finish_reason=FinishReason.STOP)).tool_calls
    for delta in (ChatDelta(usage=TokenUsage(3, 4), cost_usd=Decimal(1)), ChatDelta(ADD)):
        assert reader.feed(delta) is delta
    assert reader.flush() == ChatDelta()


def test_calls_have_different_ids_in_order() -> None:
    first, second = (read([f"[{ADD},{ADD}]"]).message.tool_calls for _ in range(2))
    ids = [call.id for call in (*first, *second)]
    assert len(set(ids)) == 4
    assert all(re.fullmatch(r"call_\w+", identity) for identity in ids)
    assert ids == sorted(ids)


def test_a_native_call_releases_the_text_before_it() -> None:
    reader = TextCallReader(NAMES)
    native = ToolCallDelta(0, "c1", "weather", "{}")
    deltas = [reader.feed(ChatDelta(ADD)), reader.feed(ChatDelta(" \n", (native,))), reader.feed(ChatDelta(ADD))]
    assert deltas == [ChatDelta(), ChatDelta(f"{ADD} \n", (native,)), ChatDelta(ADD)]
    end = ChatDelta(finish_reason=FinishReason.TOOL_CALLS)
    assert reader.feed(end) == end


def test_a_refusal_is_passed_on_and_releases_the_text_before_it() -> None:
    reader = TextCallReader(NAMES)
    assert reader.feed(ChatDelta(ADD)) == ChatDelta()
    assert reader.feed(ChatDelta(refusal="No.")) == ChatDelta(ADD, refusal="No.")
    assert reader.feed(ChatDelta(finish_reason=FinishReason.STOP)) == ChatDelta(finish_reason=FinishReason.STOP)


@pytest.mark.parametrize("size", [100, 3 * MAX_CHARACTERS])
def test_a_reply_that_is_too_long_for_calls_is_released(size: int) -> None:
    def call(characters: int) -> str:
        empty = '{"name": "add", "arguments": {"a": ""}}'
        return empty.replace('""', f'"{"x" * (characters - len(empty))}"')

    def pieces(text: str) -> list[str]:
        return [text[at : at + size] for at in range(0, len(text), size)]

    largest, larger = call(MAX_CHARACTERS), call(MAX_CHARACTERS + 1)
    assert outcome(pieces(largest))[::2] == ("", "tool_calls")
    assert outcome(pieces(larger)) == (larger, [], "stop")
    assert outcome(pieces("<think>" + "y" * MAX_CHARACTERS + "</think>" + largest))[2] == "tool_calls"


def test_text_is_released_as_soon_as_it_is_too_long() -> None:
    reader = TextCallReader(NAMES)
    beginning = '{"name": "add", "arguments": {"a": "'
    assert reader.feed(ChatDelta(beginning)) == ChatDelta()
    longer = "x" * (MAX_CHARACTERS + 1 - len(beginning))
    assert reader.feed(ChatDelta(longer)).content == beginning + longer
    assert reader.feed(ChatDelta('"')).content == '"'


def test_a_long_reply_that_looks_like_calls_costs_little_time() -> None:
    replies = [f"[{ADD}," * 2, " " * 10**5, '{"name": "add", "arguments": {"a": "' + "x\\n" * 10**5, '{"n' + "\\u0061" * 10**5]
    replies += ["[add(" + "a" * 10**5, "[add(" + "é" * 10**5 + "=1)]", f"Yes.\n```\n[add({'a' * 10**5}"]
    values = ("[" * 10**5, "-" * 10**5, "1-" * 10**5, "'x' " * 10**4, "1" * 10**5, "[" + "1," * 10**4)
    replies += [f"[add(a={value}" for value in values] + ["<tool_call>" + ADD * 10**3, "<" * 10**5]
    replies += ["Yes.\n" + "`\n" * 10**5, "Yes.\n" + "``\n~~" * 10**5, f"Yes.\n```\n{ADD}\n```" + "\n``" * 10**5]
    replies += ['{"name": "add", "arguments": {"a": ' + "[" * 10**5, "```" + "a" * 10**5, "<think>" * 10**4 + ADD]
    started = time.process_time()
    for reply in replies:
        assert outcome([reply])[0] == reply
        assert outcome([reply[at : at + 10] for at in range(0, len(reply), 10)])[0] == reply
    assert time.process_time() - started < 6


def test_quotes_in_arguments_that_have_no_end_cost_little_time() -> None:
    arguments = '"' + '\\"' * 10_000 + "ˆ"
    reply = json.dumps({"name": "add", "arguments": arguments}, ensure_ascii=False)
    started = time.process_time()
    assert outcome([reply], mark="ˆ") == (reply, [], "stop")
    assert time.process_time() - started < 0.5


# Think text


@pytest.mark.parametrize(
    ("thoughts", "begins_thinking"),
    [
        ("<think>I add.</think>", False),
        (" \n<THINK>I add.\n</Think>", False),
        ("<think>one <think>two</think> one</think>", False),
        ("<think>one</think>\n\n<think>two</think>", False),
        (f"<think>{ADD}</think>", False),
        ("I add.</think>", True),
        (f"{ADD} is it.</think>", True),
        (f"{ADD}</think>", True),
        ("<think>I <think>add.</think>", True),
        ("I add.</think><think>Or not.</think>", True),
    ],
)
def test_think_text_before_calls_stays_text(thoughts: str, begins_thinking: bool) -> None:
    text = f"{thoughts}\n\n```json\n{ADD}\n```"
    for at in range(len(text) + 1):
        assert outcome([text[:at], text[at:]], begins_thinking=begins_thinking) == (thoughts, [ADDED], "tool_calls")
    assert outcome([*text], begins_thinking=begins_thinking) == (thoughts, [ADDED], "tool_calls")


@pytest.mark.parametrize(
    ("text", "begins_thinking"),
    [
        (f"<think>{ADD}", False),
        (f"<think>I add.</think> So: {ADD}", False),
        (f"I add.</think>{ADD}", False),
        (f"<thinking>I add.</thinking>{ADD}", False),
        (f"I add. {ADD}", True),
        (f"I add.</think></think>{ADD}", True),
        (f"I add.</think>Hm.</think>{ADD}", True),
    ],
)
def test_calls_after_other_text_than_thoughts_stay_text(text: str, begins_thinking: bool) -> None:
    for at in range(len(text) + 1):
        assert outcome([text[:at], text[at:]], begins_thinking=begins_thinking) == (text, [], "stop")


def test_a_model_that_begins_thinking_may_call_without_thoughts() -> None:
    assert outcome([*ADD], begins_thinking=True) == ("", [ADDED], "tool_calls")


def test_thoughts_are_shown_while_they_arrive() -> None:
    reader = TextCallReader(NAMES)
    shown = [reader.feed(ChatDelta(piece)).content for piece in ("<thi", "nk>I", " add", ".</th", "ink>", "\n", ADD)]
    assert shown == ["", "<think>I", " add", ".</th", "ink>", "", ""]


# Marks of looked-up text, which a model imitates


def test_marks_between_tokens_are_blanks_and_those_in_strings_stay() -> None:
    text = 'ˆ```jsonˆ\n{"name":ˆ"add",ˆ"arguments":ˆ{"a":ˆ"Dasˆ\\"Torˆ\\""}}ˆ\n```ˆ'
    assert outcome([*text], mark="ˆ") == ("", [("add", {"a": 'Dasˆ"Torˆ"'})], "tool_calls")
    assert outcome([*text]) == (text, [], "stop")
    inner = '{"name":ˆ"add", "arguments":ˆ"{\\"a\\":ˆ\\"Dasˆ\\"}"}'
    assert outcome([*inner], mark="ˆ") == ("", [("add", {"a": "Dasˆ"})], "tool_calls")


# Which replies are read

SPECS = tuple(ToolSpec(name, "", {}) for name in NAMES)
TEXT_MODEL = ModelConfig.model_validate({"name": "scout", "context_window": 1000, "tool_calls": "text"})


def is_read(
    model: ModelConfig = TEXT_MODEL, tools: Sequence[ToolSpec] = SPECS, choice: ToolChoice | None = None, **fields: Any
) -> bool:
    request = ChatRequest(model.name, (Message(Role.USER, "?"),), tuple(tools), choice, **fields)
    reader = text_call_reader(model, request, None)
    return reader is not None and bool(reader.feed(ChatDelta(ADD, finish_reason=FinishReason.STOP)).tool_calls)


@pytest.mark.parametrize("choice", [None, "auto", "required", NamedTool("add")])
def test_calls_of_offered_tools_are_read(choice: ToolChoice | None) -> None:
    assert is_read(choice=choice)
    assert is_read(choice=choice, response_format={"type": "json_object"})
    assert not is_read(TEXT_MODEL.model_copy(update={"tool_calls": "native"}), choice=choice)


@pytest.mark.parametrize("choice", ["none", NamedTool("weather"), NamedTool("absent")])
def test_calls_that_the_tool_choice_excludes_stay_text(choice: ToolChoice) -> None:
    assert not is_read(choice=choice)


def test_without_offered_tools_nothing_is_read() -> None:
    assert not is_read(tools=())
    assert not is_read(tools=SPECS[1:])


def test_the_catalogue_says_that_a_model_begins_with_thoughts() -> None:
    model = TEXT_MODEL.model_copy(update={"begins_thinking": True})
    reader = text_call_reader(model, ChatRequest("scout", (), SPECS), None)
    assert reader is not None
    deltas = [reader.feed(ChatDelta("I add.</think>")), reader.feed(ChatDelta(ADD, finish_reason=FinishReason.STOP))]
    assert [(delta.content, len(delta.tool_calls)) for delta in deltas] == [("I add.</think>", 0), ("", 1)]


def test_several_calls_stay_text_if_the_request_wants_one() -> None:
    extra = {"parallel_tool_calls": False}
    assert is_read(extra=extra)
    reader = text_call_reader(TEXT_MODEL, ChatRequest("scout", (), SPECS, extra=extra), None)
    assert reader is not None
    both = ChatDelta(f"[{ADD}, {WEATHER}]", finish_reason=FinishReason.STOP)
    assert reader.feed(both) == both


# Laws

FRAGMENTS = [
    *("{", "}", "[", "]", ",", ":", '"', "\\", "```", "`", "~~~", "json", "\n", " ", "<think>", "</think>", "<thi", "Hm."),
    *('"name": ', '"arguments": ', '"parameters": ', '"function": {', '"tool_calls": [', '"type": "function", ', '"add", ', "{}"),
    *('"{}"', '{"a": 1}', ADD, WEATHER, f"[{ADD}]", f"```json\n{WEATHER}\n```"),
    *(
        ";",
        "<tool_call>",
        "</tool_call>",
        "<tools>",
        "</tools>",
        f"\n```\n{ADD}\n```\n",
        "[add(a=1)]",
        "add(",
        "a=",
        "1",
        "'",
        ")",
    ),
    *("[add(a='", "')]", "None", "'" * 3, ")"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)
BLANKS = " \t\r\n"


def reference(text: str) -> tuple[str, list[tuple[str, Any]]] | None:
    """Return the words and the calls of a whole reply without think text, or None if it has no calls."""
    with suppress(ValueError):
        return "", reference_units(text)
    opening = re.search(r"^(```|~~~)", text, re.MULTILINE)
    header = re.compile(r"[\w+-]*[ \t\r]*\n").match(text, opening.end()) if opening is not None else None
    if opening is None or header is None:
        return None
    for closing in re.finditer(rf"{opening[1]}[ \t\r]*(?=\n|\Z)", text[header.end() :]):
        after = text[header.end() + closing.end() :]
        with suppress(ValueError):
            calls = reference_units(text[header.end() : header.end() + closing.start()], wrapped=True)
            words = text[: opening.start()] + after
            may_quote = re.search(r"<[a-z/!]|\[/?think\]|^ {1,3}(?:```|~~~)", words, re.ASCII | re.IGNORECASE | re.MULTILINE)
            return None if may_quote or re.search(r"\n(?:```|~~~)", after) else (words, calls)
    return None


def reference_units(text: str, *, wrapped: bool = False) -> list[tuple[str, Any]]:
    """Return all calls of ``text``, which has nothing else."""
    calls: list[tuple[str, Any]] = []
    text = text.strip(BLANKS)
    while True:
        more, end = reference_unit(text, wrapped=wrapped)
        calls += more
        text = text[end:].lstrip(BLANKS)
        if not text:
            return calls
        text = text[1:].lstrip(BLANKS) if text[0] in ",;" else text


def reference_unit(text: str, *, wrapped: bool) -> tuple[list[tuple[str, Any]], int]:
    """Return the calls at the beginning of ``text``, and their length."""
    opening = re.match(r"(```|~~~)[\w+-]*|<(tool_call|tools)>", text) if not wrapped else None
    if opening is not None:
        for closing in re.finditer(opening[1] or f"</{opening[2]}>", text[opening.end() :]):
            with suppress(ValueError):
                inner = reference_units(text[opening.end() : opening.end() + closing.start()], wrapped=True)
                return inner, opening.end() + closing.end()
        raise ValueError(text)
    if re.match(r"\[[ \t\r\n]*[^{ \t\r\n]", text):
        for end in (found.end() for found in re.finditer("]", text)):
            with suppress(SyntaxError):
                return reference_python(ast.parse(text[:end], mode="eval").body), end
        raise ValueError(text)
    value, end = json.JSONDecoder(object_pairs_hook=unique).raw_decode(text)
    value = value["tool_calls"] if isinstance(value, dict) and [*value] == ["tool_calls"] else value
    calls = [reference_call(call) for call in (value if isinstance(value, list) else [value])]
    if not calls:
        raise ValueError(value)
    return calls, end


def reference_python(node: ast.expr) -> list[tuple[str, Any]]:
    match node:
        case ast.List(elts=[_, *_] as calls):
            return [reference_python(call)[0] for call in calls]
        case ast.Call(func=ast.Name(id="add" | "weather" as name), args=[], keywords=keywords):
            words = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg}
            if len(words) == len(keywords):
                with suppress(TypeError):
                    return [(name, json.loads(json.dumps(words)))]
    raise ValueError(node)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(pairs)
    return dict(pairs)


def parse(text: str) -> Any:
    return json.loads(text, object_pairs_hook=unique)


def reference_call(value: Any) -> tuple[str, Any]:
    match value:
        case {"type": str(kind), **rest} if kind == "function":
            return reference_call(rest)
        case {"function": {"name": _, **_other} as function, **rest} if not rest and not {"type", "function"} & function.keys():
            return reference_call(function)
        case {"name": str(name), "arguments": arguments} | {"name": str(name), "parameters": arguments} if len(value) == 2:
            arguments = parse(arguments) if isinstance(arguments, str) else arguments
            if name in NAMES and isinstance(arguments, dict):
                return name, arguments
    raise ValueError(value)


@given(text=texts, cuts=st.lists(st.integers(0, 80), max_size=6), begins_thinking=st.booleans())
def test_the_result_does_not_depend_on_where_the_text_is_cut(text: str, cuts: list[int], begins_thinking: bool) -> None:
    ends = [*sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    expected = outcome([text], begins_thinking=begins_thinking)
    assert outcome(pieces, begins_thinking=begins_thinking) == outcome([*text], begins_thinking=begins_thinking) == expected


@given(text=st.one_of(st.text(), texts))
@example(text='{"name": "add", "arguments": {}}')
@example(text='{"name": "add", "arguments": ""}')
@example(text='[{"type": "function", "name": "add", "arguments": "{}"}]')
@example(text='```json\n{"tool_calls": [{"function": {"name": "add", "parameters": {}}}]}```')
def test_the_result_is_that_of_a_simple_rule_on_the_whole_text(text: str) -> None:
    assume("think>" not in text)
    assume("\\" not in text or "(" not in text)  # Python warns of unknown escapes
    read = reference(text)
    assert outcome([*text]) == ((text, [], "stop") if read is None else (*read, "tool_calls"))


@given(text=texts)
def test_a_reply_without_calls_arrives_complete_and_in_order(text: str) -> None:
    content, calls, _ = outcome([*text])
    if not calls:
        assert content == text
    else:  # calls are taken out of one place
        assert any(text.startswith(content[:at]) and text.endswith(content[at:]) for at in range(len(content) + 1))
