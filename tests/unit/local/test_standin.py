"""The stand-in answers from the conversation, calls tools if plainly asked to, and says if it knows nothing."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from local.standin.app import app
from local.standin.toolchoice import expression_in
from local.standin.wire import as_body, as_events, complete
from local.standin.words import content_stems, stem

GERMAN = "Du antwortest immer auf Deutsch."
BERLIN = (
    'The documents below were retrieved from the knowledge index "berlin-info" for the message that follows.\n'
    '<retrieved index="berlin-info">\n'
    '<document id="gate">\nDas Brandenburger Tor steht im Bezirk Mitte am Pariser Platz, gebaut 1791.\n</document>\n'
    '<document id="park">\nDer Tiergarten ist der größte innerstädtische Park Berlins, 210 Hektar.\n</document>\n'
    '<document id="shops">\nDer Kurfürstendamm im Westen ist die bekannteste Einkaufsstraße.\n</document>\n</retrieved>'
)


def answer_to(*messages: tuple[str, str], **request: Any) -> str:
    body = {"model": "any", "messages": [{"role": role, "content": content} for role, content in messages], **request}
    content = complete(body).content
    assert content is not None
    return content


def calls_for(question: str, *names: str, system: str = "", **request: Any) -> list[tuple[str, dict[str, Any]]]:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    calls = complete({"model": "any", "messages": messages, "tools": tools, **request}).tool_calls
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        ("Wo finde ich den größten Park?", "Tiergarten"),
        ("Wann wurde das Brandenburger Tor gebaut?", "1791"),
        ("Wie viele Hektar hat der Tiergarten?", "210"),
        ("Wo kann ich einkaufen?", "Kurfürstendamm"),
        ("When was the Brandenburg Gate built?", "1791"),
    ],
)
def test_it_answers_from_retrieved_documents(question: str, fact: str) -> None:
    assert fact in answer_to(("system", GERMAN), ("user", BERLIN), ("user", question))


def test_it_names_the_document_when_the_instructions_want_sources() -> None:
    system = "Nenne am Ende in eckigen Klammern die Kennungen der Fundstellen."
    assert answer_to(("system", system), ("user", BERLIN), ("user", "Wann wurde das Tor gebaut?")).endswith("1791. [gate]")


def test_it_remembers_what_the_user_answer_to() -> None:
    answer = answer_to(
        ("system", GERMAN),
        ("user", "Mein Lieblingssport ist Tennis."),
        ("assistant", "Notiert."),
        ("user", "Welcher Sport ist mein Liebling?"),
    )
    assert answer == "Dein Lieblingssport ist Tennis."


def test_it_uses_a_statement_before_the_question() -> None:
    assert answer_to(("user", "Mein Sport ist Tennis. Was ist mein Sport?")) == "Dein Sport ist Tennis."


def test_it_answers_each_of_two_questions() -> None:
    answer = answer_to(("user", BERLIN), ("user", "Wann wurde das Brandenburger Tor gebaut? Wie heißt der größte Park?"))
    assert "1791" in answer
    assert "Tiergarten" in answer


def test_it_says_so_when_nothing_matches() -> None:
    assert "Ersatzmodell" in answer_to(("system", GERMAN), ("user", BERLIN), ("user", "Wie heißt der Bürgermeister von Hamburg?"))
    assert "stand-in" in answer_to(("user", "Who wrote Hamlet?"))


def test_it_does_not_answer_with_the_question_or_an_earlier_one() -> None:
    question = "Welche Farbe hat der Himmel?"
    assert "Himmel" not in answer_to(
        ("system", GERMAN), ("user", question), ("assistant", "Ich bin unsicher."), ("user", question)
    )


def test_it_does_not_treat_an_instruction_as_a_fact() -> None:
    assert "stand-in" in answer_to(
        ("system", "Answer every question about the weather in two sentences."), ("user", "How is the weather?")
    )


def test_it_acknowledges_a_statement() -> None:
    assert answer_to(("system", GERMAN), ("user", "Mein Lieblingssport ist Tennis.")) == "Notiert."


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("Was ist 17 * 23?", "17 * 23"),
        ("What is 12.5% of 480?", "12.5 / 100 * 480"),
        ("Wie viel ist 1.234,5 plus 6?", "1234.5 + 6"),
        ("What is 1,234 plus 6?", "1234 + 6"),
        ("What is the square root of 144?", "144 ** 0.5"),
        ("What is 2^10?", "2**10"),
        ("What is sqrt(256)?", "sqrt(256)"),
        ("What is 2 * sqrt(2.25) - cbrt(8)?", "2 * sqrt(2.25) - cbrt(8)"),
        ("Was ist log10(1.000) + sqrt(0,25)?", "log10(1000) + sqrt(0.25)"),
        ("What does sqrt(x) mean?", None),
        ("Berechne 3 mal (4 + 5)", "3 * (4 + 5)"),
        ("Was war am 2024-05-01?", None),
        ("Read pages 10-20 of /v1/models", None),
        ("Who is 007?", None),
    ],
)
def test_it_reads_the_arithmetic_of_a_question(question: str, expression: str | None) -> None:
    assert expression_in(question, german="?" in question and "What" not in question) == expression


def test_it_calls_the_tools_that_a_question_asks_for() -> None:
    tools = ("calculator", "current_datetime", "wikipedia_search", "wikipedia_summary", "rag_query")
    assert calls_for("What is 6 * 7, and what time is it in Berlin?", *tools) == [
        ("calculator", {"expression": "6 * 7"}),
        ("current_datetime", {"timezone": "Europe/Berlin"}),
    ]
    assert calls_for("What does Wikipedia say about Alan Turing?", *tools) == [
        ("wikipedia_search", {"query": "Alan Turing", "language": "en"})
    ]
    assert calls_for("Hello there, nice to meet you!", *tools) == []


def test_it_searches_the_named_index() -> None:
    question = "Wann wurde das Brandenburger Tor gebaut?"
    assert calls_for(question, "rag_query") == [("rag_query", {"index_id": "berlin-info", "query": question})]
    assert calls_for(f"{question} Suche im Index sights-2.", "rag_query") == [
        ("rag_query", {"index_id": "sights-2", "query": question})
    ]
    assert calls_for(question, "rag_query", system="Search the index `museum`.") == [
        ("rag_query", {"index_id": "museum", "query": question})
    ]


def test_it_calls_a_tool_of_the_caller() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
        "required": ["city", "unit"],
    }
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    request = {"model": "m", "messages": [{"role": "user", "content": "What is the weather in Berlin in kelvin?"}]}
    completion = complete({**request, "tools": [weather]})
    assert completion.finish_reason == "tool_calls"
    assert json.loads(completion.tool_calls[0]["function"]["arguments"]) == {"city": "Berlin", "unit": "kelvin"}
    assert complete({**request, "tools": [weather], "tool_choice": "none"}).tool_calls == []
    forced = {"type": "function", "function": {"name": "get_weather"}}
    hello = [{"role": "user", "content": "Hello"}]
    assert complete({**request, "messages": hello, "tools": [weather], "tool_choice": forced}).tool_calls
    assert complete({**request, "messages": hello, "tools": [weather]}).tool_calls == []


TOWER = {"id": "t", "text": "Der Turm misst 368 Meter."}
NO_INDEX = {"error": {"code": "index_not_found", "message": "There is no index 'x'."}}
NOON = {"timezone": "UTC", "date": "2026-04-30", "time": "12:00:00", "weekday": "Thursday"}
ARTICLE = {"title": "Turing", "snippet": "A mathematician."}


@pytest.mark.parametrize(
    ("name", "arguments", "result", "fact"),
    [
        ("calculator", {"expression": "6 * 7"}, {"expression": "6 * 7", "result": 42}, "6 * 7 = 42"),
        ("rag_query", {"query": "Wie hoch ist der Turm?"}, {"results": [{**TOWER, "score": 0.6}]}, "368"),
        ("rag_query", {"query": "Wie alt ist Rom?"}, {"results": [{**TOWER, "score": 0.1}]}, "nichts"),
        ("rag_query", {"query": "x"}, NO_INDEX, "There is no index"),
        ("current_datetime", {}, NOON, "2026-04-30"),
        ("wikipedia_search", {"query": "x"}, {"results": [ARTICLE]}, "Turing: A mathematician."),
        ("get_weather", {"city": "Berlin"}, {"city": "Berlin", "celsius": 21}, "celsius: 21"),
        ("get_weather", {"city": "Berlin"}, "21 degrees", "21 degrees"),
    ],
)
def test_after_a_tool_it_answers_from_its_result(name: str, arguments: dict[str, Any], result: Any, fact: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "system", "content": GERMAN},
        {"role": "user", "content": str(arguments.get("query", "Was sagt das Werkzeug?"))},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
    ]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}}]
    completion = complete({"model": "m", "messages": messages, "tools": tools})
    assert completion.tool_calls == []
    assert completion.content is not None
    assert fact in completion.content


def test_it_condenses_when_asked() -> None:
    chatter = " ".join(f"Okay, point {n} is fine with us." for n in range(40))
    summary = answer_to(
        ("user", "Our budget is 300 Euro."),
        ("assistant", chatter),
        ("user", "Ada Lovelace decides on 3 May."),
        ("user", "Summarise this."),
    )
    assert "300 Euro" in summary
    assert "Ada Lovelace" in summary
    assert len(summary) < len(chatter) / 2


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
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}] if offered else []
    completion = complete({"model": "m", "messages": messages, "tools": tools})
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


def test_inflected_forms_have_the_same_stem() -> None:
    assert stem("größten") == stem("größte") == stem("groß")
    assert content_stems("Wo ist der Park?") == ("park",)


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
