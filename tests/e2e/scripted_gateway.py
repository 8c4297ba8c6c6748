"""A started gateway whose model does as it is told: what the suites of other people's SDKs run against.

The model calls the tool that it is told to call, or, when it may choose, the one that the question names. It fills in whatever
JSON Schema it is given, and stops where it shall stop.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from spass.testing.model_server import Body, Completion, hashed_vector, serve_model
from tests.e2e.conftest import Gateway, running_gateway

TEXT: Final = "Hello! How are you? I answer by a script."
DIMENSIONS: Final = len(hashed_vector(""))
_QUOTED: Final = re.compile(r"'([^']+)'")
_NUMBER: Final = re.compile(r"-?\d+")


@contextmanager
def scripted_gateway(
    folder: Path, *, token: str, chat: Sequence[str], embeddings: Sequence[str], embedding_inputs: int = 256
) -> Iterator[Gateway]:
    """Run a gateway that serves the models ``chat`` and ``embeddings`` to callers with ``token``, until the block ends."""
    models = [f"  - {{name: {name}, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}" for name in chat]
    models += [f"  - {{name: {name}, kind: embedding, dimensions: {DIMENSIONS}, context_window: 8192}}" for name in embeddings]
    catalogue = "\n".join(models)
    with serve_model(lambda asked: Completion(reply(asked))) as upstream:
        config = f"""
llm:
  backends:
    - {{name: script, provider: openai, base_url: "{upstream}/v1", supported_models: [{", ".join([*chat, *embeddings])}]}}
models:
{catalogue}
limits: {{embedding_inputs: {embedding_inputs}}}
defaults: {{embedding_model: {embeddings[0]}, compact_summary_model: {chat[0]}}}
tenants:
  - id: sdk
    tokens: [{{id: sdk, sha256: {hashlib.sha256(token.encode()).hexdigest()}}}]
"""
        with running_gateway(folder, config) as gateway:
            yield gateway


def reply(asked: Body) -> dict[str, Any]:
    """Return the assistant's message to a chat request: the client's request alone decides it."""
    question = _question(asked["messages"])
    if tool := _called_tool(asked, question):
        arguments = json.dumps(_example(tool.get("parameters") or {}, question), ensure_ascii=False)
        call = {
            "id": f"call_{len(asked['messages'])}",
            "type": "function",
            "function": {"name": tool["name"], "arguments": arguments},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    match asked.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"role": "assistant", "content": json.dumps(_example(schema, question))}
        case {"type": "json_object"}:
            return {"role": "assistant", "content": json.dumps(dict.fromkeys(_QUOTED.findall(question), "by the script"))}
    text = TEXT
    for stop in asked.get("stop") or ():
        text = text.split(stop)[0]
    return {"role": "assistant", "content": text}


def _question(messages: list[dict[str, Any]]) -> str:
    """The text of the last message."""
    content = messages[-1]["content"] or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _called_tool(asked: Body, question: str) -> dict[str, Any] | None:
    """The function that is called, if one is: never as the answer to a tool's result."""
    functions = [tool["function"] for tool in asked.get("tools") or ()]
    choice = asked.get("tool_choice", "auto")
    if not functions or choice == "none" or (choice == "auto" and asked["messages"][-1]["role"] == "tool"):
        return None
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    mentioned = [function for function in functions if function["name"] in question]
    chosen: dict[str, Any] = next((function for function in functions if function["name"] == named), (mentioned or functions)[0])
    return chosen


def _example(schema: dict[str, Any], question: str, root: dict[str, Any] | None = None) -> Any:
    """A value that ``schema`` allows, with the numbers and the quoted words of the question in it."""
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
