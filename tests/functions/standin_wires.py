"""The stand-in model behind the wire forms of Ollama and Anthropic: it reads their requests and answers as they do."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from local.standin.wire import Completion, complete
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from tests.unit.models.wire_forms import WIRE_FORMS, WIRE_PATHS, WireScript, call

Body = dict[str, Any]
CONTENT_TYPES: Final = {"ollama": "application/x-ndjson", "anthropic": "text/event-stream"}


def serve_standin(form: str, bodies: list[Body]) -> AbstractContextManager[str]:
    """Serve the stand-in in the wire form ``form`` until the block ends, and append each request's body to ``bodies``. Yield the
    server's URL."""

    def respond(request: HttpRequest) -> HttpAnswer:
        assert request.path == WIRE_PATHS[form]
        body: Body = request.json
        bodies.append(body)
        completion = complete({**body, "messages": [*_READERS[form](body)], "tools": _tools(body)})
        return HttpAnswer(iter(WIRE_FORMS[form](_script(completion))), content_type=CONTENT_TYPES[form])

    return serve(respond)


def _script(completion: Completion) -> WireScript:
    functions = [one["function"] for one in completion.tool_calls]
    if functions:
        return WireScript([[call(function["name"], function["arguments"]) for function in functions]])
    return WireScript([completion.content or ""])


def _tools(body: Body) -> list[Body]:
    """Return the tools of either form in OpenAI's."""
    functions = [tool.get("function", tool) for tool in body.get("tools") or ()]
    return [{"type": "function", "function": {"name": one["name"], "parameters": one.get("parameters", {})}} for one in functions]


def _from_ollama(body: Body) -> Iterator[Body]:
    """Yield the messages. A result has no id, so it belongs to the first call of its tool that has none yet."""
    waiting: list[tuple[str, str]] = []
    for number, message in enumerate(body["messages"]):
        if calls := message.get("tool_calls"):
            waiting = [(f"call_{number}_{at}", one["function"]["name"]) for at, one in enumerate(calls)]
            texts = [json.dumps(one["function"]["arguments"]) for one in calls]
            yield _assistant(message["content"], [(*named, text) for named, text in zip(waiting, texts, strict=True)])
        elif message["role"] == "tool":
            found = next(named for named in waiting if named[1] == message["tool_name"])
            waiting.remove(found)
            yield {"role": "tool", "tool_call_id": found[0], "content": message["content"]}
        else:
            yield message


def _from_anthropic(body: Body) -> Iterator[Body]:
    yield {"role": "system", "content": body.get("system", "")}
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            yield message
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
        text = "\n\n".join(block["text"] for block in blocks if block["type"] == "text")
        uses = [(block["id"], block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
        if uses:
            yield _assistant(text, uses)
        elif text:
            yield {"role": message["role"], "content": text}


def _assistant(text: str, calls: list[tuple[str, str, str]]) -> Body:
    written = [
        {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}} for name, tool, arguments in calls
    ]
    return {"role": "assistant", "content": text, "tool_calls": written}


_READERS: Final[Mapping[str, Callable[[Body], Iterator[Body]]]] = {"ollama": _from_ollama, "anthropic": _from_anthropic}
