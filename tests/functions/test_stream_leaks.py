"""Secrets that a model writes into a stream, over many tokens: neither the stream, cut anywhere, nor the journal, the history or
the log has them. Streams of two tenants with equal names stay apart."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest

from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.errors import AttemptFailed
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest
from tests.functions.gateway import Gateway
from tests.functions.stored_texts import stored_texts
from tests.functions.stream_workers import Response, Worker, virtual_time
from tests.functions.test_leaks import assert_clean, planted_gateway, route
from tests.stream_grammar import answer_text, of_type, parse_events, receive
from tests.unit.calls.planted_secrets import PROVIDER_KEY, SECRETS, leaked_kinds

__all__ = ["planted_gateway"]

CHAT = "/c1/agents/counting/chat"


def body(message_id: str, text: str = "Hi", **more: object) -> dict[str, object]:
    return {"message_id": message_id, "messages": [{"role": "user", "content": text}], **more}


def write(text: str, size: int, *last: ChatDelta) -> list[ChatDelta]:
    """Return ``text`` in deltas of ``size`` characters, and ``last``."""
    return [*(ChatDelta(text[at : at + size]) for at in range(0, len(text), size)), *last]


END = ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))


@pytest.mark.parametrize("size", [1, 3, 16, 5000])
def test_a_secret_split_over_tokens_is_in_no_part_of_a_chat(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    gateway = planted_gateway
    route(gateway, lambda _, __: gateway.model)
    text = "Here: " + " and ".join(SECRETS.values()) + " that was all."
    arguments = json.dumps({"expression": list(SECRETS.values())})
    call = [ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "calculator"),))]
    pieces = [ChatDelta(tool_calls=(ToolCallDelta(0, arguments=part.content),)) for part in write(arguments, size)]
    answers = iter([[*write(text, size), *call, *pieces, END], write(text, size, END)])
    gateway.model.script = lambda _, __: next(answers)
    whole = gateway.send("POST", CHAT, body=body("m-1"))
    events = parse_events(whole.text)
    session = of_type(events, "done")[0]["session_id"]
    history = gateway.send("GET", f"/a1/agents/counting/sessions/{session}/messages")
    replay = gateway.send("GET", f"{CHAT}/m-1")
    assert parse_events(replay.text) == events
    assert " that was all." in answer_text(events)
    assert "Here: " in history.json["messages"][-1]["content"]
    steps = {step: "".join(t["content"] for t in of_type(events, "token") if t["step"] == step) for step in (1, 2)}
    for out in (*steps.values(), history.text, *stored_texts(gateway)):
        assert not leaked_kinds(out, SECRETS)
    assert_clean(whole, capsys, SECRETS)
    assert_clean(history, capsys, SECRETS)


def test_a_stream_that_is_cut_at_any_byte_has_no_secret(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway = planted_gateway
    route(gateway, lambda _, __: gateway.model)
    secrets = {kind: SECRETS[kind] for kind in ("openai project", "provider key", "private key", "bearer token")}
    gateway.model.script = write("Here: " + " and ".join(secrets.values()) + " that was all.", 5, END)
    whole = gateway.send("POST", CHAT, body=body("m-1"))
    rests: dict[str | None, str] = {}
    data = whole.text.encode()
    for cut in range(len(data) + 1):
        start = data[:cut]
        ids = receive(start).ids
        last = str(ids[-1]) if ids else None
        if last not in rests:
            rests[last] = gateway.send("GET", f"{CHAT}/m-1", headers={} if last is None else {"Last-Event-ID": last}).text
        received = start.decode(errors="ignore") + "\n" + rests[last]
        tokens = "".join(event["content"] for part in (start, rests[last]) for event in of_type(receive(part).events, "token"))
        assert "that was all." in tokens
        assert not leaked_kinds(received + tokens, secrets), cut
    assert_clean(None, capsys, secrets)


@pytest.fixture
def worker(planted_gateway: Gateway) -> Worker:
    """A process whose provider's key is one of the secrets."""
    gateway = planted_gateway
    worker = Worker.start(gateway.services.settings, gateway.model, gateway.aws)
    worker.services.router = Router(
        gateway.services.config.llm, gateway.services.config.models, lambda _: PROVIDER_KEY, provider_of=lambda *_: gateway.model
    )
    return worker


@pytest.mark.parametrize("kind", ["openai project", "anthropic", "github", "provider key", "web token", "private key"])
@pytest.mark.parametrize("end", ["a failure", "a stop"])
def test_a_turn_that_ends_inside_a_secret_does_not_show_it(
    planted_gateway: Gateway, worker: Worker, capsys: pytest.CaptureFixture[str], kind: str, end: str
) -> None:
    secret = {kind: SECRETS[kind]}
    deltas = write(f"Here: {SECRETS[kind]} that was all.", 4)
    with virtual_time() as loop:
        for number in range(2, len(deltas), 1 + len(deltas) // 24):
            planted_gateway.model.script = lambda _, __, started=deltas[:number]: _unfinished(started, fails=end == "a failure")
            reply = loop.run_until_complete(_post(worker, f"m-{number}", stops=end == "a stop"))
            events = receive(reply.body).events
            assert events[-1]["type"] == ("error" if end == "a failure" else "done")
            assert not leaked_kinds("".join(event["content"] for event in of_type(events, "token")), secret), number
            assert not leaked_kinds(reply.body.decode(), secret)
    for text in stored_texts(planted_gateway):
        assert not leaked_kinds(text, secret), text
    assert_clean(None, capsys, secret)


async def _unfinished(deltas: Sequence[ChatDelta], *, fails: bool) -> AsyncGenerator[ChatDelta, None]:
    for delta in deltas:
        yield delta
    if fails:
        raise AttemptFailed("down")
    await asyncio.sleep(600)


async def _post(worker: Worker, message_id: str, *, stops: bool) -> Response:
    turn = asyncio.create_task(worker.send("POST", CHAT, body=body(message_id)))
    if stops:
        await asyncio.sleep(2)
        assert (await worker.send("DELETE", f"{CHAT}/{message_id}")).status == 202
    return await turn


def test_streams_of_two_tenants_with_equal_names_stay_apart(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"demo-token": "amber", "sibling-token": "basalt", "other-token": "cobalt"}
    tenants = {"demo-token": "demo#", "sibling-token": "demo-2#", "other-token": "other#"}

    async def answer(request: ChatRequest, _: CallContext) -> AsyncGenerator[ChatDelta, None]:
        word = request.messages[-1].content
        for at in range(20):
            await asyncio.sleep(0.1 * (1 + at % 3))
            yield ChatDelta(f"{word}-{at} ")
        yield END

    async def read(worker: Worker, token: str, name: str) -> list[bytes]:
        request = {"message_id": name, "session_id": "equal-name", "messages": [{"role": "user", "content": words[token]}]}
        posted = asyncio.create_task(worker.send("POST", CHAT, body=request, token=token))
        await asyncio.sleep(1)
        follower = await workers[0].send("GET", f"{CHAT}/{name}", token=token)
        assert follower.events == (await posted).events
        return follower.events

    async def read_all() -> list[list[bytes]]:
        return await asyncio.gather(*(read(worker, token, "m-1") for worker, token in zip(workers, words, strict=True)))

    gateway.model.script = answer
    workers = [Worker.start(gateway.services.settings, gateway.model, gateway.aws) for _ in words]
    with virtual_time() as loop:
        streams = loop.run_until_complete(read_all())
    for (token, word), events in zip(words.items(), streams, strict=True):
        own, others = b"".join(events).decode(), [other for other in words.values() if other != word]
        stored = "".join(stored_texts(gateway, tenants[token]))
        assert f"{word}-19" in own
        assert f"{word}-19" in stored
        assert not [other for other in others if other in own + stored]
    assert not [word for word in words.values() if word in capsys.readouterr().out]
