"""The stand-in answers from the conversation, calls tools if plainly asked to, and says if it knows nothing."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from local.standin.app import app
from local.standin.tools import expression_in
from local.standin.wire import as_body, as_events, complete

BERLIN = (
    'The documents below were retrieved from the knowledge index "berlin-info" for the message that follows.\n'
    '<retrieved index="berlin-info">\n'
    '<document id="gate">\nDas Brandenburger Tor steht im Bezirk Mitte am Pariser Platz, gebaut 1791.\n</document>\n'
    '<document id="park">\nDer Tiergarten ist der größte innerstädtische Park Berlins, 210 Hektar.\n</document>\n</retrieved>'
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
    "required": ["city", "unit"],
}


def tool(name: str, parameters: object = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}}}


def answer_to(*messages: tuple[str, str], **request: Any) -> str:
    body = {"model": "any", "messages": [{"role": role, "content": content} for role, content in messages], **request}
    content = complete(body).content
    assert content is not None
    return content


def calls_for(question: str, *tools: dict[str, Any], **request: Any) -> list[tuple[str, dict[str, Any]]]:
    messages = [{"role": "user", "content": question}]
    calls = complete({"model": "any", "messages": messages, "tools": [*tools], **request}).tool_calls
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        ("Wo ist der größte Park?", "Tiergarten"),
        ("Wann wurde das Brandenburger Tor gebaut?", "1791"),
        ("How many Hektar has the Tiergarten?", "210"),
    ],
)
def test_it_answers_from_retrieved_documents(question: str, fact: str) -> None:
    assert fact in answer_to(("user", BERLIN), ("user", question))


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("My favourite sport is tennis.", "Which sport is my favourite?"),
        ("Mein Lieblingssport ist Tennis.", "Welcher Sport ist mein Liebling?"),  # a word in a compound of it
    ],
)
def test_it_remembers_what_the_user_said(said: str, question: str) -> None:
    assert answer_to(("user", said), ("assistant", "Noted."), ("user", question)) == said


def test_it_uses_a_statement_before_the_question() -> None:
    assert answer_to(("user", "My sport is tennis. What is my sport?")) == "My sport is tennis."


def test_it_answers_each_of_two_questions() -> None:
    answer = answer_to(("user", BERLIN), ("user", "Wann wurde das Brandenburger Tor gebaut? Wie heißt der größte Park?"))
    assert "1791" in answer
    assert "Tiergarten" in answer


@pytest.mark.parametrize("question", ["Who wrote Hamlet?", "Wie heißt der Bürgermeister von Hamburg?"])
def test_it_says_so_when_nothing_matches(question: str) -> None:
    assert answer_to(("user", BERLIN), ("user", question)).startswith("I am the offline stand-in model")


def test_it_does_not_answer_with_the_question_or_an_earlier_one() -> None:
    question = "Which colour has the sky?"
    assert "sky" not in answer_to(("user", question), ("assistant", "I am not sure."), ("user", question))


def test_it_does_not_treat_an_instruction_as_a_fact() -> None:
    system = ("system", "Answer every question about the weather in two sentences.")
    assert "stand-in" in answer_to(system, ("user", "How is the weather?"))


def test_it_acknowledges_a_statement() -> None:
    assert answer_to(("user", "My favourite sport is tennis.")) == "Noted."


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 17 * 23?", "17 * 23"),
        ("What is 100 - 1?", "100 - 1"),
        ("What is 2+2?", "2+2"),
        ("What is 2^10?", "2**10"),
        ("What is 3 * (4 + 5)?", "3 * (4 + 5)"),
        ("What is 2 * sqrt(2.25) - cbrt(8)?", "2 * sqrt(2.25) - cbrt(8)"),
        ("Compute (17 * 23", "17 * 23"),
        ("What is sqrt(256)?", "sqrt(256)"),
        ("What does sqrt(x) mean?", None),
        ("What was on 2024-05-01?", None),
        ("Read pages 10-20 of /v1/models", None),
        ("Who is 007?", None),
        pytest.param("(" * 200_000, None, id="many brackets"),
    ],
)
def test_it_reads_the_arithmetic_of_a_question(question: str, expression: str | None) -> None:
    assert expression_in(question) == expression


def test_it_calls_the_tools_that_a_question_asks_for() -> None:
    tools = [tool(name) for name in ("calculator", "current_datetime", "wikipedia_search", "rag_query")]
    assert calls_for("What is 6 * 7, and what time is it in Europe/Berlin?", *tools) == [
        ("calculator", {"expression": "6 * 7"}),
        ("current_datetime", {"timezone": "Europe/Berlin"}),
    ]
    assert [name for name, _ in calls_for("What does Wikipedia say about Alan Turing?", *tools)] == ["wikipedia_search"]
    assert calls_for("Hello there, nice to meet you!", *tools) == []
    assert calls_for("When was the gate built?", *tools) == []


@pytest.mark.parametrize(
    ("question", "index", "query"),
    [
        ("Wer baute das Tor? Suche im Index sights-2.", "sights-2", "Wer baute das Tor?"),
        ("Search the index `museum`: who built it?", "museum", "Search the index `museum`: who built it?"),
        ("Who built it? Look in the index handbook", "handbook", "Who built it?"),
    ],
)
def test_it_searches_the_named_index(question: str, index: str, query: str) -> None:
    assert calls_for(question, tool("rag_query"), tool("web_search")) == [("rag_query", {"index_id": index, "query": query})]


def test_it_calls_a_tool_of_the_caller() -> None:
    question, weather = "What is the weather in Berlin in kelvin?", tool("get_weather", WEATHER)
    arguments = {"city": "Berlin", "unit": "kelvin"}
    assert calls_for(question, weather) == [("get_weather", arguments)]
    assert calls_for(question, weather, tool_choice="none") == []
    assert calls_for("Hello", weather) == []
    assert calls_for("Hello", weather, tool_choice=weather) == [("get_weather", {"city": "Hello", "unit": "celsius"})]
    assert len(calls_for("Hello", tool("a"), weather, tool_choice="required")) == 1
    assert len(calls_for("get get_weather weather", weather, tool("weather_get"), parallel_tool_calls=False)) == 1


TOWER = {"id": "t", "text": "Der Turm misst 368 Meter.", "score": 0.6}
NO_INDEX = {"error": {"code": "index_not_found", "message": "There is no index 'x'."}}
NOON = {"timezone": "UTC", "date": "2026-04-30", "time": "12:00:00", "weekday": "Thursday"}
LONG = "The town hall was opened in a year of storms. It is the seat of the council, and its cellar holds the archive."


@pytest.mark.parametrize(
    ("name", "arguments", "result", "fact"),
    [
        ("calculator", {"expression": "6 * 7"}, {"expression": "6 * 7", "result": 42}, "6 * 7 = 42"),
        ("rag_query", {"query": "Wie hoch ist der Turm?"}, {"results": [TOWER]}, "368"),
        ("rag_query", {"query": "Wie alt ist Rom?"}, {"results": [TOWER]}, "I am the offline stand-in"),
        ("rag_query", {"query": "x"}, NO_INDEX, "There is no index"),
        ("current_datetime", {}, NOON, "2026-04-30"),
        ("get_weather", {"city": "Berlin"}, {"city": "Berlin", "celsius": 21}, "celsius: 21"),
        ("get_weather", {"city": "Berlin"}, "21 degrees", "21 degrees"),
        ("fetch", {"query": "Where is the archive?"}, {"text": LONG}, "It is the seat of the council"),
    ],
)
def test_after_a_tool_it_answers_from_its_result(name: str, arguments: dict[str, Any], result: Any, fact: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": str(arguments.get("query", "What does the tool say?"))},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
    ]
    completion = complete({"model": "m", "messages": messages, "tools": [tool(name)]})
    assert completion.tool_calls == []
    assert (completion.content or "").startswith(fact) or fact in (completion.content or "")


def test_it_obeys_max_tokens_and_stop() -> None:
    messages = [{"role": "user", "content": BERLIN}, {"role": "user", "content": "Wann wurde das Tor gebaut?"}]
    short = complete({"model": "m", "messages": messages, "max_tokens": 4})
    assert (short.finish_reason, short.content) == ("length", "Das Brandenburger")
    stopped = complete({"model": "m", "messages": messages, "stop": [" steht"]})
    assert (stopped.finish_reason, stopped.content) == ("stop", "Das Brandenburger Tor")


def test_it_answers_in_json_when_asked() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "y", "schema": schema}}
    assert json.loads(answer_to(("user", BERLIN), ("user", "Wann wurde das Tor gebaut?"), response_format=response_format)) == {
        "year": 1791
    }


TEXT = st.text(max_size=80)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.none() | TEXT})


@given(st.lists(MESSAGE, min_size=1, max_size=6), st.booleans())
def test_the_collected_stream_is_the_blocking_answer(messages: list[dict[str, Any]], offered: bool) -> None:
    completion = complete({"model": "m", "messages": messages, "tools": [tool("calculator")] if offered else []})
    events = [json.loads(event[6:]) for event in as_events(completion, include_usage=True) if "[DONE]" not in event]
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    body = as_body(completion)
    message = body["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    arguments = "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ()))
    assert arguments == "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
    assert events[-1]["usage"] == body["usage"]
    assert events[-2]["choices"][0]["finish_reason"] == body["choices"][0]["finish_reason"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "enum", "items", "properties", "required", "default", "function", "name", "parameters", "schema"]
            ),
            inner | st.sampled_from(["object", "array", "integer", "json_schema", "rag_query", "a"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(tools=JSON | st.lists(st.fixed_dictionaries({"function": JSON})), choice=JSON, shape=JSON, stop=JSON, calls=JSON)
def test_it_answers_arbitrary_tools_and_formats(tools: Any, choice: Any, shape: Any, stop: Any, calls: Any) -> None:
    messages = [
        {"role": "assistant", "content": calls, "tool_calls": calls},
        {"role": "user", "content": "What is the name of a?"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": json.dumps(calls)},
    ]
    request = {"tools": tools, "tool_choice": choice, "response_format": shape, "stop": stop}
    for length in (2, 4):
        json.dumps(as_body(complete({"model": "m", "messages": messages[:length], **request})))


@pytest.mark.anyio
async def test_the_openai_sdk_reads_it() -> None:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport) as http:
        client = AsyncOpenAI(base_url="http://stand-in/v1", api_key="any", http_client=http, max_retries=0)
        reply = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Who wrote Hamlet?"}])
        assert "stand-in" in (reply.choices[0].message.content or "")
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "Who wrote Hamlet?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == reply.choices[0].message.content
        assert chunks[-1].usage == reply.usage
        refused = await http.post("http://stand-in/v1/chat/completions", content=b"{")
        assert refused.status_code == 400
