"""Streams of ``/v1/chat/completions``: content, failures, replays, and clients that disconnect."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from spass.core.messages import FinishReason
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatDelta, ChatRequest
from tests.functions.completion_chunks import chunks_of, text_of
from tests.functions.gateway import Gateway

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_a_stream_has_the_answer_and_ends_with_its_cost(gateway: Gateway) -> None:
    answer = gateway.send("POST", "/v1/chat/completions", body=BODY)
    assert not [name for name in answer.headers if name.startswith("spass-cost")], "the headers are sent before the cost is known"
    items = chunks_of(answer)
    assert text_of(items) == "Hello there."
    assert len(items) > 2
    usage = items[-1]["usage"]
    assert usage["cost"] == 0.00002
    assert usage["cost_details"] == {"eur": "0.00001", "usd": "0.00002", "source": "catalog", "sub_calls": 1}


async def slow_answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
    yield ChatDelta("Hello ")
    await asyncio.sleep(0.2)
    yield ChatDelta("there.", finish_reason=FinishReason.STOP)


def test_a_refusal_has_its_own_status_and_no_stream(gateway: Gateway) -> None:
    reply = gateway.send("POST", "/v1/chat/completions", body=BODY | {"model": "dear"})
    assert (reply.status, reply.code) == (403, "model_not_allowed")
    gateway.model.failure = AttemptFailed("down")
    reply = gateway.send("POST", "/v1/chat/completions", body=BODY)
    assert (reply.status, reply.code) == (502, "upstream_error")
    reply = gateway.send("POST", "/v1/chat/completions", body=BODY, headers={"SPASS-Augment": "all=off"})
    assert (reply.status, reply.code) == (400, "invalid_augment")


def test_a_stream_with_a_key_is_stored_and_replayed(gateway: Gateway) -> None:
    key = {"Idempotency-Key": "k"}
    first = chunks_of(gateway.send("POST", "/v1/chat/completions", body=BODY, headers=key))
    replay = gateway.send("POST", "/v1/chat/completions", body=BODY, headers=key)
    assert replay.headers["idempotency-replayed"] == "true"
    assert not [name for name in replay.headers if name.startswith("spass-cost")]
    assert text_of(chunks_of(replay)) == text_of(first)
    assert chunks_of(replay)[0]["id"] == first[0]["id"]
    assert chunks_of(replay)[-1]["usage"] == first[-1]["usage"]
    assert len(gateway.model.requests) == 1
    other = gateway.send("POST", "/v1/chat/completions", body=BODY | {"stream": False}, headers=key)
    assert other.code == "idempotency_key_reused"


def test_a_failed_stream_is_not_stored(gateway: Gateway) -> None:
    key = {"Idempotency-Key": "k"}
    gateway.model.failure = AttemptFailed("down")
    assert gateway.send("POST", "/v1/chat/completions", body=BODY, headers=key).status == 502
    gateway.model.failure = None
    assert text_of(chunks_of(gateway.send("POST", "/v1/chat/completions", body=BODY, headers=key))) == "Hello there."


def test_after_a_disconnect_the_key_gives_the_whole_answer(gateway: Gateway) -> None:
    key = {"Idempotency-Key": "k"}
    gateway.model.script = slow_answer
    messages = gateway.leave("/v1/chat/completions", key, BODY)
    assert b"[DONE]" not in b"".join(message.get("body", b"") for message in messages)
    replay = gateway.send(
        "POST", "/v1/chat/completions", body=BODY, token="demo-admin-token", headers=key | {"SPASS-User-Id": "ada"}
    )
    assert replay.headers["idempotency-replayed"] == "true"
    assert text_of(chunks_of(replay)) == "Hello there."
    assert len(gateway.model.requests) == 1


@pytest.mark.parametrize("words", [[], ["Well "]], ids=["before the first word", "after it"])
def test_a_disconnect_ends_a_stream_without_a_key(gateway: Gateway, words: list[str]) -> None:
    disconnect, continued = asyncio.Event(), False

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        nonlocal continued
        for word in words:
            yield ChatDelta(word)
        disconnect.set()
        await asyncio.sleep(3)
        continued = True
        yield ChatDelta("too late")

    gateway.model.script = answer
    messages = gateway.leave("/v1/chat/completions", {}, BODY, when=disconnect)
    assert not continued
    assert b"[DONE]" not in b"".join(message.get("body", b"") for message in messages)
    (record,) = gateway.records()
    assert record["status"] == "cancelled"
    assert record["model"] == "small"
