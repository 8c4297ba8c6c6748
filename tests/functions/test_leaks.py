"""Every kind of secret, planted on every way that something can go wrong: none is in an answer, a header or the log."""

import asyncio
import hashlib
import json
import os
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError, EndpointConnectionError

from functions.workers import compaction_step, jobs
from spass.core.messages import FinishReason, TokenUsage
from spass.llm.router import Router
from spass.llm.types import CallContext, ChatDelta, ChatRequest, Provider, ToolCallDelta
from spass.redaction import text as redaction
from spass.tenancy.config import BackendConfig
from tests.functions.gateway import BUCKET, CONFIG, TABLE, Gateway, Reply
from tests.functions.test_ingest_workers import change_settings, messages, put
from tests.unit.calls.planted_secrets import (
    BATCHES,
    KNOWN,
    PLACED,
    PROVIDER_KEY,
    SECRETS,
    SHAPED,
    TOKEN,
    leaked_kinds,
    set_credentials,
    text_with_secrets,
)
from tests.unit.calls.provider_failures import ARN, FAILURES, HOST, PATH, PLACES, failing_words
from tests.unit.llm.scripted_upstream import CLASSES as PROVIDERS
from tests.unit.llm.scripted_upstream import Upstream, backend, whole

pytestmark = pytest.mark.moto


def share(*path: str) -> list[dict[str, str]]:
    """Of the batches some, other ones for each path through the gateway; in a long run all of them."""
    return BATCHES if "SPASS_SOAK" in os.environ else BATCHES[zlib.crc32("".join(path).encode()) % 6 :: 6]


Send = Callable[[Gateway], Reply]

CHAT: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
DOCUMENTS = {"documents": [{"id": "a", "text": "alpha"}]}


def _turn(gateway: Gateway) -> Reply:
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    return gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": "Hi"})


CHATS: Mapping[str, Send] = {
    "chat": lambda gateway: gateway.send("POST", "/v1/chat/completions", body=CHAT),
    "stream": lambda gateway: gateway.send("POST", "/v1/chat/completions", body=CHAT | {"stream": True}),
    "agent": lambda gateway: gateway.send("POST", "/a1/agents/plain/chat", body={"message": "Hi"}),
    "turn": _turn,
}
EMBEDS: Mapping[str, Send] = {
    "embeddings": lambda gateway: gateway.send("POST", "/v1/embeddings", body={"model": "mini-embed", "input": "Hi"}),
    "documents": lambda gateway: gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS),
}
SURFACES: Mapping[str, Send] = {**CHATS, **EMBEDS}


@pytest.fixture
def planted_gateway(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway that knows the secrets that are told by being known."""
    set_credentials(monkeypatch)
    redaction.reload_environment()
    sha = [hashlib.sha256(token.encode()).hexdigest() for token in ("sibling-token", TOKEN)]
    config = CONFIG.replace(sha[0], sha[1]).replace("provider: ollama", "provider: openai")
    gateway.services.settings.config.write_text(config)
    yield gateway
    redaction.reload_environment()


def routed_to(gateway: Gateway, upstream: Upstream, provider: str = "openai") -> None:
    """From now on the real provider asks ``upstream``."""

    def made(_: BackendConfig, __: str | None) -> Provider:
        at = backend(provider, base_url=f"https://{HOST}/v1")
        return PROVIDERS[provider](at, PROVIDER_KEY, transport=upstream.transport)

    route(gateway, made)


def route(gateway: Gateway, made: Callable[[BackendConfig, str | None], Provider]) -> None:
    services = gateway.services
    services.__dict__["router"] = Router(services.config.llm, services.config.models, lambda _: PROVIDER_KEY, provider_of=made)
    for made_of_it in ("calls", "completions", "engine", "rag", "toolbox"):
        services.__dict__.pop(made_of_it, None)


def assert_clean(reply: Reply | None, capsys: pytest.CaptureFixture[str], batch: Mapping[str, str], path: str = "") -> None:
    """Neither a secret nor a place of ours is in what a client gets or the log says."""
    captured = capsys.readouterr()
    outs = {"stdout": captured.out, "stderr": captured.err}
    if reply is not None:
        outs |= {"body": reply.text, "headers": str(dict(reply.headers))}
    for where, out in outs.items():
        assert not leaked_kinds(out, batch), (path, where)
        for place in PLACES:
            assert place not in out, (path, where)


@pytest.mark.parametrize("failure", FAILURES)
def test_what_a_provider_says_as_it_fails(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], failure: str) -> None:
    for surface, send in SURFACES.items():
        for batch in share(failure, surface):
            routed_to(planted_gateway, Upstream(FAILURES[failure](text_with_secrets(batch))))
            reply = send(planted_gateway)
            assert reply.status >= 400 or '"error"' in reply.text
            assert_clean(reply, capsys, batch, surface)


ECHOES: Mapping[str, Callable[[Gateway, str], Reply]] = {
    "model": lambda gateway, secret: gateway.send("POST", "/v1/chat/completions", body=CHAT | {"model": secret}),
    "streamed": lambda gateway, secret: gateway.send(
        "POST", "/v1/chat/completions", body=CHAT | {"model": secret, "stream": True}
    ),
    "field": lambda gateway, secret: gateway.send("POST", "/v1/embeddings", body={"model": "m", "input": "Hi", secret: 1}),
    "setting": lambda gateway, secret: gateway.send("PUT", "/v1/tenant/config", body={secret: 1}, token="demo-admin-token"),
    "inner": lambda gateway, secret: gateway.send(
        "POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha", secret: 1}]}
    ),
}


@pytest.mark.parametrize("where", ECHOES)
def test_what_a_caller_sent_is_not_shown_to_it_where_it_is_a_secret(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PROVIDER_KEY)  # not asked with yet
    for secret in (PROVIDER_KEY, TOKEN, SHAPED["openai project"]):
        reply = ECHOES[where](planted_gateway, secret)
        assert 400 <= reply.status < 500
        assert secret[4:16] not in reply.text + str(dict(reply.headers)) + capsys.readouterr().out
    assert "nonsense" in ECHOES[where](planted_gateway, "nonsense").text


@pytest.mark.parametrize("surface", CHATS)
def test_what_a_model_says(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], surface: str) -> None:
    said = "Here: " + " and ".join(SECRETS.values()) + " that was all."

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        for at in range(0, len(said), 7):
            yield ChatDelta(said[at : at + 7])
        yield ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))

    route(planted_gateway, lambda _, __: planted_gateway.model)
    planted_gateway.model.script = answer
    reply = CHATS[surface](planted_gateway)
    assert reply.status == 200
    if surface == "stream":
        chunks = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n")[:-2]]
        whole_text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    else:
        whole_text = json.dumps(reply.json)
    assert "Here: " in whole_text
    assert " that was all." in whole_text
    assert not leaked_kinds(whole_text, SECRETS)
    assert_clean(reply, capsys, SECRETS)
    if surface == "turn":
        at = f"/a1/agents/plain/sessions/{reply.json['session_id']}/messages"
        assert not leaked_kinds(planted_gateway.send("GET", at).text, SECRETS)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_writes_into_the_call_of_a_callers_tool(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], stream: bool
) -> None:
    arguments = json.dumps({"text": list(SECRETS.values())})

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "note"),))
        for at in range(0, len(arguments), 5):
            yield ChatDelta(tool_calls=(ToolCallDelta(0, arguments=arguments[at : at + 5]),))
        yield ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=TokenUsage(1, 1))

    route(planted_gateway, lambda _, __: planted_gateway.model)
    planted_gateway.model.script = answer
    tools = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]
    reply = planted_gateway.send("POST", "/v1/chat/completions", body=CHAT | {"tools": tools, "stream": stream})
    assert reply.status == 200
    if stream:
        chunks = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n")[:-2]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        heard = "".join(piece["function"]["arguments"] for delta in deltas for piece in delta.get("tool_calls", ()))
    else:
        heard = reply.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert len(json.loads(heard)["text"]) == len(SECRETS)
    assert not leaked_kinds(heard, SECRETS)
    assert_clean(reply, capsys, SECRETS)


@pytest.mark.parametrize("failure", ["errors", "no json", "no connection", "a bug"])
def test_what_the_server_behind_a_tool_says_as_it_fails(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    for every in BATCHES:
        batch = {kind: secret for kind, secret in every.items() if kind not in KNOWN}  # that server never hears of these
        words = f"{text_with_secrets(batch)} {PATH} https://{HOST}/w"

        async def get(*_: object, words: str = words) -> bytes:
            match failure:
                case "errors":
                    return json.dumps({"errors": [{"text": words}]}).encode()
                case "no json":
                    return words.encode()
                case "no connection":
                    raise httpx.ConnectError(words)
                case _:
                    raise RuntimeError(words)

        monkeypatch.setattr("spass.tools.builtin.mediawiki._get", get)
        body = {"name": "wikipedia_summary", "arguments": {"title": "x"}}
        reply = planted_gateway.send("POST", "/v1/tools/execute", body=body)
        assert reply.status == (500 if failure == "a bug" else 200)
        assert_clean(reply, capsys, batch)


STORAGE: Mapping[str, Callable[[str], Exception]] = {
    "refused": lambda words: ClientError(
        {"Error": {"Code": "AccessDeniedException", "Message": f"{words} {ARN} on table/{TABLE}"}}, "GetItem"
    ),
    "broken": lambda words: ClientError({"Error": {"Code": "InternalServerError", "Message": f"{words} {BUCKET}"}}, "PutObject"),
    "unreachable": lambda words: EndpointConnectionError(endpoint_url=f"https://{HOST}/{words}"),
    "a bug": lambda words: RuntimeError(f"{words} {PATH} {TABLE}"),
}
STORED: Mapping[str, Send] = {
    **{name: send for name, send in SURFACES.items() if name != "turn"},  # which begins with a session
    "sessions": lambda gateway: gateway.send("GET", "/a1/agents/plain/sessions"),
    "indices": lambda gateway: gateway.send("GET", "/a1/rag/indices"),
    "query": lambda gateway: gateway.send("POST", "/a1/rag/indices/notes/query", body={"query": "x"}),
    "upload": lambda gateway: gateway.send(
        "POST", "/a1/rag/indices/n/uploads", body={"filename": "a.txt", "content_type": "text/plain", "size": 1}
    ),
    "list": lambda gateway: gateway.send("GET", "/a1/rag/indices/notes/uploads"),
}


@pytest.mark.parametrize("failure", STORAGE)
def test_what_the_table_and_the_bucket_say_as_they_fail(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    route(planted_gateway, lambda _, __: planted_gateway.model)
    for surface, send in STORED.items():
        for batch in share(failure, surface):
            error = STORAGE[failure](text_with_secrets(batch))

            def fails(*_: object, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(BaseClient, "_make_api_call", fails)
            reply = send(planted_gateway)
            assert TABLE not in reply.text + str(dict(reply.headers)), surface
            assert_clean(reply, capsys, batch, surface)


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "after a piece"])
def test_a_bug_of_ours(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], begun: bool) -> None:
    route(planted_gateway, lambda _, __: planted_gateway.model)
    for surface, send in CHATS.items():
        for batch in share(surface):

            async def answer(*_: object, words: str = text_with_secrets(batch)) -> AsyncGenerator[ChatDelta, None]:
                if begun:
                    yield ChatDelta("Well ")
                raise LookupError(words, PATH) from ValueError(words)

            planted_gateway.model.script = answer
            reply = send(planted_gateway)
            assert "internal_error" in reply.text
            assert_clean(reply, capsys, batch, surface)


INVALID: Mapping[str, Callable[[str], tuple[str, object]]] = {
    "a value": lambda words: ("/v1/chat/completions", CHAT | {"temperature": words, "stop": [[words]], "tool_choice": words}),
    "a role": lambda words: ("/v1/chat/completions", CHAT | {"messages": [{"role": words, "content": {words: words}}]}),
    "a model": lambda words: ("/a1/agents/plain/sessions", {"compact_strategy": words, "title": [words]}),
    "arguments": lambda words: ("/v1/tools/execute", {"name": "calculator", "arguments": {"expression": [words]}}),
    "an expression": lambda words: ("/v1/tools/execute", {"name": "calculator", "arguments": {"expression": f"1 + {words}"}}),
    "a zone": lambda words: ("/v1/tools/execute", {"name": "current_datetime", "arguments": {"timezone": words}}),
    "a language": lambda words: (
        "/v1/tools/execute",
        {"name": "wikipedia_search", "arguments": {"query": "x", "language": words}},
    ),
    "documents": lambda words: ("/a1/rag/indices/notes/documents", {"documents": [{"id": words, "text": 1, "metadata": words}]}),
    "a filter": lambda words: ("/a1/rag/indices/notes/query", {"query": "x", "filter": {"a": {"$in": words}}, "top_k": words}),
}


def test_a_request_that_is_refused_does_not_come_back(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    for what, made in INVALID.items():
        for batch in share(what):
            path, body = made(text_with_secrets(batch))
            reply = planted_gateway.send("POST", path, body=body)
            assert reply.status == 400 or '"error"' in reply.text
            assert_clean(reply, capsys, batch, what)


def test_names_of_members_do_not_come_back_where_they_are_secrets(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, secret in SHAPED.items():
        reply = planted_gateway.send("POST", "/a1/agents/plain/sessions", body={secret: 1})
        assert reply.status == 400
        assert_clean(reply, capsys, {kind: secret} if len(secret) <= 64 else {})  # of a longer name the beginning is shown


def test_headers_of_a_request_stand_in_no_line_of_the_log(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    route(planted_gateway, lambda _, __: planted_gateway.model)
    for kind, secret in SHAPED.items():
        headers = {"X-Anything": secret, "User-Agent": secret}
        reply = planted_gateway.send("POST", "/v1/chat/completions", body=CHAT, headers=headers)
        assert reply.status == 200
        assert_clean(reply, capsys, {kind: secret})
        misplaced = planted_gateway.send("GET", "/v1/models", headers={"SPASS-Parent-Request-Id": secret})
        assert misplaced.status == 400
        assert_clean(misplaced, capsys, {kind: secret})
        assert_clean(planted_gateway.send("GET", "/v1/models", token=secret), capsys, {kind: secret})


def test_a_token_and_a_key_of_the_gateway_stand_in_no_line_of_the_log(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_gateway.send("GET", "/v1/models", token=TOKEN)
    routed_to(planted_gateway, Upstream(whole({"choices": [{"message": {"role": "assistant", "content": "Hi"}}]})))
    assert CHATS["chat"](planted_gateway).status == 200
    assert_clean(None, capsys, {kind: SECRETS[kind] for kind in KNOWN} | {kind: SECRETS[kind] for kind in PLACED})


def test_a_file_that_is_ingested_and_fails(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(monkeypatch)
    for number, batch in enumerate(BATCHES):
        routed_to(planted_gateway, Upstream(failing_words(text_with_secrets(batch), 400)))
        event = messages(put(f"uploads/demo/books{number}/a.txt", b"Text."), f"no json {text_with_secrets(batch)}", receives=5)
        planted_gateway.work(jobs.work, event)
        reply = planted_gateway.send("GET", f"/a1/rag/indices/books{number}/uploads")
        assert reply.json["uploads"][0]["status"] == "failed"
        assert_clean(reply, capsys, batch)


def test_a_step_that_meets_a_bug(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((KeyError, ValueError, LookupError)) as raised:
        planted_gateway.work(compaction_step.work, {"tenant": "demo", "job": "job_1", "step": text_with_secrets(BATCHES[0])})
    assert not leaked_kinds(str(raised.value), BATCHES[0])
    assert_clean(None, capsys, BATCHES[0])


def test_the_work_of_a_client_that_went_away(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    batch = BATCHES[0]

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("Well ")
        await asyncio.sleep(0.05)
        raise LookupError(text_with_secrets(batch))

    planted_gateway.model.script = answer
    planted_gateway.leave("/v1/chat/completions", {}, CHAT | {"stream": True})
    assert_clean(None, capsys, batch)
