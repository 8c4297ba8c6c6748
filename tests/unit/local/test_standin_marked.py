"""The marks of retrieved data do not change the stand-in's answers."""

import json
from typing import Any

import pytest

from local.standin.wire import complete
from spass.calls.datamark import NOTE
from spass.calls.defence import sanitize_request
from spass.completions.augment import render_memory
from spass.core.messages import Message, Role, ToolCall
from spass.models.providers.openai_compatible import chat_body
from spass.models.types import ChatRequest

DOCUMENTS = (
    '<retrieved index="berlin" for="the message that follows">\n'
    '<document id="gate">\nDas Brandenburger Tor steht im Bezirk Mitte.\n\nEs wurde 1791 gebaut.\n</document>\n'
    '<document id="park">\n# Parks\n- Der Tiergarten ist der größte Park.\n- Der Mauerpark ist jünger.\n</document>\n</retrieved>'
)
SYSTEM = Message(Role.SYSTEM, "Answer from what was looked up.")
QUESTION = "Wie heißt der größte Park?"


def ask_with_documents(question: str, *system: Message) -> tuple[Message, ...]:
    return (*system, Message(Role.USER, DOCUMENTS, data=True), Message(Role.USER, question))


def ask_with_tool_result(name: str, arguments: dict[str, Any], result: object, **json_options: Any) -> tuple[Message, ...]:
    call = ToolCall("c1", name, json.dumps(arguments))
    return (
        SYSTEM,
        Message(Role.USER, str(arguments.get("query", "Was sagt das Werkzeug?"))),
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, json.dumps(result, **json_options), tool_call_id="c1"),
    )


CONVERSATIONS = {
    "documents": (ask_with_documents(QUESTION, SYSTEM), "Der Tiergarten ist der größte Park."),
    "the tenant's memory": (
        (
            Message(Role.USER, render_memory("Ada likes tea.\nThe garden door opens with 4711."), data=True),
            Message(Role.USER, "What opens the garden door?"),
        ),
        "The garden door opens with 4711.",
    ),
    "nothing matches": (ask_with_documents("Wie heißt der Bürgermeister von Hamburg?", SYSTEM), "stand-in"),
    "nothing matches the note": (ask_with_documents("What counts only in the answer to your own call?"), "stand-in"),
    "hits": (
        ask_with_tool_result(
            "rag_query", {"query": "Wie hoch ist der Turm?"}, {"results": [{"id": "t", "text": "Der Turm misst 368 m."}]}
        ),
        "Der Turm misst 368 m.",
    ),
    "pretty JSON": (
        ask_with_tool_result("weather", {}, {"city": "New York", "note": "rain\nand wind"}, indent=4),
        "city: New York",
    ),
    "plain text": (ask_with_tool_result("weather", {}, "21 degrees"), "21 degrees"),
}


@pytest.mark.parametrize(("messages", "fact"), CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_marks_change_no_answer(messages: tuple[Message, ...], fact: str) -> None:
    request = ChatRequest("m", messages)
    marked = chat_body(sanitize_request(request).request, "max_tokens")
    plain = chat_body(request, "max_tokens")
    assert NOTE in json.dumps(marked, ensure_ascii=False).replace('\\"', '"')
    answer, before = complete(marked), complete(plain)
    assert (answer.content, answer.tool_calls, answer.usage) == (before.content, before.tool_calls, before.usage)
    assert fact in (answer.content or "")
