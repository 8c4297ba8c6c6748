"""A scripted model for the test suites of third-party SDKs.

The model calls the tool that ``tool_choice`` names, or else the one that the question mentions. It returns values that match the
given JSON Schema and ends its text before a stop sequence.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from spass.testing.model_server import Body, Completion, hashed_vector, model_handler
from tests.e2e.sites import Site, chat_model, tenant, token

TEXT: Final = "Hello! How are you? I answer by a script."
_QUOTED: Final = re.compile(r"'([^']+)'")
_NUMBER: Final = re.compile(r"-?\d+")


def scripted_site(name: str, token_text: str, chat: Sequence[str], embeddings: Sequence[str]) -> Site:
    """Return the models ``chat`` and ``embeddings`` for a tenant with one token."""
    sizes = {"kind": "embedding", "dimensions": len(hashed_vector("")), "context_window": 8192}
    models = [*map(chat_model, chat), *({"name": embedding, **sizes} for embedding in embeddings)]
    respond = model_handler(lambda request: Completion(reply(request)))
    return Site(name, respond, models, tenants=[tenant(name, {**token(token_text), "id": name})])


def reply(request: Body) -> dict[str, Any]:
    """Return the assistant's message to a chat request. It depends on the request only."""
    question = _question(request["messages"])
    if tool := _called_tool(request, question):
        arguments = json.dumps(_example(tool.get("parameters") or {}, question), ensure_ascii=False)
        call = {
            "id": f"call_{len(request['messages'])}",
            "type": "function",
            "function": {"name": tool["name"], "arguments": arguments},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    match request.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"role": "assistant", "content": json.dumps(_example(schema, question))}
        case {"type": "json_object"}:
            return {"role": "assistant", "content": json.dumps(dict.fromkeys(_QUOTED.findall(question), "by the script"))}
    text = TEXT
    for stop in request.get("stop") or ():
        text = text.split(stop)[0]
    return {"role": "assistant", "content": text}


def _question(messages: list[dict[str, Any]]) -> str:
    """Return the text of the last message."""
    content = messages[-1]["content"] or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _called_tool(request: Body, question: str) -> dict[str, Any] | None:
    """Return the function to call, or None. With ``tool_choice: auto`` a tool's result is never answered by another call."""
    functions = [tool["function"] for tool in request.get("tools") or ()]
    choice = request.get("tool_choice", "auto")
    if not functions or choice == "none" or (choice == "auto" and request["messages"][-1]["role"] == "tool"):
        return None
    required_name = choice["function"]["name"] if isinstance(choice, dict) else None
    mentioned_functions = [function for function in functions if function["name"] in question]
    called_function: dict[str, Any] = next(
        (function for function in functions if function["name"] == required_name), (mentioned_functions or functions)[0]
    )
    return called_function


def _example(schema: dict[str, Any], question: str, root: dict[str, Any] | None = None) -> Any:
    """Return a value that matches ``schema``. It contains the first number and the first quoted words of the question."""
    root = root or schema
    if reference := schema.get("$ref"):
        return _example(root["$defs"][reference.rsplit("/", 1)[1]], question, root)
    if options := schema.get("anyOf"):
        return _example(options[0], question, root)
    if "enum" in schema:
        return schema["enum"][0]
    quoted, number = _QUOTED.search(question), _NUMBER.search(question)
    match schema.get("type", "object"):
        case "string":
            return quoted[1] if quoted else "by the script"
        case "integer" | "number":
            return int(number[0]) if number else 1
        case "boolean":
            return True
        case "array":
            return [_example(schema.get("items", {}), question, root)]
    return {name: _example(inner, question, root) for name, inner in schema.get("properties", {}).items()}
