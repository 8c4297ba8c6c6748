"""The scripted model over a socket has OpenAI's wire format. The examples of docs/testing.md work."""

import json
import re
from pathlib import Path

import httpx
import pytest

from spass.testing.http_server import HttpAnswer, serve
from spass.testing.model_server import Completion, serve_model

PAGE = (Path(__file__).parents[3] / "docs" / "testing.md").read_text(encoding="utf-8")
ARGUMENTS = '{"a": 1, "b": 2}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_the_examples_of_the_page_work() -> None:
    blocks = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/testing.md", "exec"), {})


def test_the_collected_stream_is_the_blocking_answer() -> None:
    with serve_model(lambda _: Completion({"content": "One moment, please.", "tool_calls": [CALL]})) as url:
        whole = httpx.post(f"{url}/v1/chat/completions", json=REQUEST).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = httpx.post(f"{url}/v1/chat/completions", json=REQUEST | options).text
    *events, done = re.findall(r"data: (.+)\n\n", streamed)
    chunks = [json.loads(event) for event in events]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    assert "".join(call["function"].get("arguments", "") for call in calls) == ARGUMENTS
    assert [call["id"] for call in calls if "id" in call] == ["call_1"]
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]] == [
        "tool_calls"
    ]
    assert (chunks[-1]["usage"], done) == (whole["usage"], "[DONE]")


def test_embeddings_are_numbers_or_base64() -> None:
    with serve_model(lambda _: None, embed=lambda text: [float(len(text)), 0.5]) as url:
        body = {"model": "m", "input": ["a", "bcd"]}
        listed = httpx.post(f"{url}/v1/embeddings", json=body).json()["data"]
        packed = httpx.post(f"{url}/v1/embeddings", json=body | {"encoding_format": "base64"}).json()["data"]
    assert [entry["embedding"] for entry in listed] == [[1.0, 0.5], [3.0, 0.5]]
    assert [entry["embedding"] for entry in packed] == ["AACAPwAAAD8=", "AABAQAAAAD8="]


def test_an_answer_can_be_incomplete_or_missing() -> None:
    answers = {"/short": HttpAnswer(b"{", content_length=10), "/closed": None}
    with serve(lambda request: answers[request.path]) as url:
        for path in answers:
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.get(url + path)
