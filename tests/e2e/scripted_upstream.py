"""A model provider that follows a script: OpenAI's wire format over a program that does as it is told.

It calls the tool that it is told to call, or, when it may choose, the one that the question names; it fills in whatever JSON
Schema it is given; it stops where it shall stop. So what a client meets is decided by the client's request alone.
"""

import base64
import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

TEXT: Final = "Hello! How are you? I answer by a script."
DIMENSIONS: Final = 8
_QUOTED: Final = re.compile(r"'([^']+)'")
_NUMBER: Final = re.compile(r"-?\d+")


@contextmanager
def scripted_upstream() -> Iterator[str]:
    """Serves until the block ends; gives the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reply(asked: dict[str, Any]) -> dict[str, Any]:
    """The assistant's message to a chat request."""
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


def _called_tool(asked: dict[str, Any], question: str) -> dict[str, Any] | None:
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


def _usage(asked: dict[str, Any], said: dict[str, Any]) -> dict[str, int]:
    prompt, completion = len(json.dumps(asked["messages"])) // 4, len(json.dumps(said)) // 4
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _whole(asked: dict[str, Any]) -> dict[str, Any]:
    said = reply(asked)
    reason = "tool_calls" if said.get("tool_calls") else "stop"
    return {
        **_head(asked, "chat.completion"),
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": reason}],
        "usage": _usage(asked, said),
    }


def _chunks(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same in pieces."""
    whole = _whole(asked)
    message, reason = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if message["content"] is not None else None}]
    deltas += [{"content": piece} for piece in re.findall(r"\S+\s*", message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": function["name"], "arguments": ""}}]})
        pieces = re.findall(r"(?s).{1,4}", function["arguments"])
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    for delta, finish in [*((delta, None) for delta in deltas), ({}, reason)]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        yield {**_head(asked, "chat.completion.chunk"), "choices": [choice]}
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield {**_head(asked, "chat.completion.chunk"), "choices": [], "usage": whole["usage"]}


def _head(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": asked["model"]}


def _embeddings(asked: dict[str, Any]) -> dict[str, Any]:
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    data: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        seed = zlib.crc32(text.encode())
        row = [((seed >> shift) & 0xFF) / 256 for shift in range(0, 4 * DIMENSIONS, 4)]
        packed = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *row)).decode()
        data.append(
            {"object": "embedding", "index": index, "embedding": packed if asked.get("encoding_format") == "base64" else row}
        )
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "model": asked["model"], "data": data, "usage": usage}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(b"{}", "application/json")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/embeddings"):
            self._send(json.dumps(_embeddings(asked)).encode(), "application/json")
        elif asked.get("stream"):
            events = [b"data: " + json.dumps(chunk).encode() for chunk in _chunks(asked)]
            self._send(b"\n\n".join([*events, b"data: [DONE]\n\n"]), "text/event-stream")
        else:
            self._send(json.dumps(_whole(asked)).encode(), "application/json")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class says so)
        """Says nothing."""

    def _send(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
