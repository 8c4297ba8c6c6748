"""Check the conversation of a request to a model, as OpenAI and Anthropic do before they answer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

Entry = Mapping[str, Any]

_ID: Final = re.compile("[a-zA-Z0-9_-]{1,64}")


def check_openai(messages: Sequence[Entry]) -> None:
    """Assert that OpenAI accepts ``messages``: each tool call has one result, which follows it, and no message is empty."""
    waiting: set[str] = set()
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "tool":
            assert message["tool_call_id"] in waiting, "a result without a call, or a second one"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"calls without a result: {waiting}"
        calls = [call["id"] for call in message.get("tool_calls", ())]
        assert content or (role == "assistant" and calls), f"an empty message: {message}"
        assert len(set(calls)) == len(calls)
        waiting = set(calls)
    assert not waiting, f"calls without a result: {waiting}"
    assert messages[-1]["role"] in ("user", "tool")


def check_anthropic(messages: Sequence[Entry]) -> None:
    """Assert that Anthropic accepts ``messages``: the roles alternate, the results of all calls of a message begin the next one,
    and no text is blank."""
    assert [message["role"] for message in messages] == [("user", "assistant")[at % 2] for at in range(len(messages))]
    assert messages[-1]["role"] == "user"
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        blocks = message["content"]
        assert blocks, "an empty message"
        assert all(block["text"].strip() for block in blocks if block["type"] == "text"), "a blank text"
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(waiting), (results, waiting)
        assert all(block["type"] == "tool_result" for block in blocks[: len(results)]), "the results must come first"
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert not seen & set(waiting)
        assert all(_ID.fullmatch(identity) for identity in waiting)
        seen |= set(waiting)
    assert not waiting, f"calls without a result: {waiting}"
