"""Secrets are planted in every kind of failure. None may appear in an answer, a header or the log."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from functions.workers import compaction_step, jobs
from spass.aws.http_connection import Answer, NoAnswer
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, Provider
from spass.redaction import text as redaction
from spass.tenancy.config import BackendConfig, SearchConfig
from spass.tools.http import ServerAnswer
from spass.tools.search_engine import SearchEngine
from tests.functions.completion_chunks import chunks_of, text_of
from tests.functions.gateway import BUCKET, CONFIG, TABLE, Gateway, MotoAws, Reply
from tests.functions.stored_texts import stored_texts
from tests.functions.test_ingest_workers import change_settings, messages, put
from tests.sampling import sampled
from tests.stream_grammar import answer_text, read_events
from tests.unit.calls.planted_secrets import (
    BATCHES,
    BY_CONTEXT,
    BY_FORMAT,
    BY_VALUE,
    PROVIDER_KEY,
    SECRETS,
    TOKEN,
    leaked_kinds,
    set_credentials,
    text_with_secrets,
)
from tests.unit.calls.provider_failures import ARN, FAILURES, HOST, OUR_NAMES, PATH, error_answer
from tests.unit.models.scripted_upstream import CLASSES as PROVIDERS
from tests.unit.models.scripted_upstream import Upstream, backend, json_answer


def share(*path: str) -> Sequence[dict[str, str]]:
    """Return a twelfth of the batches, which depends on ``path``."""
    return sampled(BATCHES, 12, "".join(path))


Send = Callable[[Gateway], Reply]

CHAT: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
AGENT_CHAT = CHAT | {"model": "agent/plain"}
DOCUMENTS = {"documents": [{"id": "a", "text": "alpha"}]}


_numbers = count()


def _turn(gateway: Gateway, *, stream: bool = False) -> Reply:
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    return gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": "Hi", "stream": stream})


def _streamed_chat(gateway: Gateway) -> Reply:
    body = {"message_id": f"m-{next(_numbers)}", "messages": [{"role": "user", "content": "Hi"}]}
    return gateway.send("POST", "/c1/agents/plain/chat", body=body)


CHATS: Mapping[str, Send] = {
    "chat": lambda gateway: gateway.send("POST", "/v1/chat/completions", body=CHAT),
    "stream": lambda gateway: gateway.send("POST", "/v1/chat/completions", body=CHAT | {"stream": True}),
    "agent": lambda gateway: gateway.send("POST", "/a1/agents/plain/chat", body={"message": "Hi"}),
    "agent as a model": lambda gateway: gateway.send("POST", "/v1/chat/completions", body=AGENT_CHAT),
    "stream of an agent as a model": lambda gateway: gateway.send(
        "POST", "/v1/chat/completions", body=AGENT_CHAT | {"stream": True}
    ),
    "turn": _turn,
    "streamed turn": lambda gateway: _turn(gateway, stream=True),
    "streamed chat": _streamed_chat,
    "job card": lambda gateway: gateway.send("POST", "/c1/agents/plain/job_card", body={"title": "Greet", "task": "Hi"}),
    "ask": lambda gateway: gateway.send("POST", "/v1/ask", body={"input": "Hi", "agent": "simple"}),
    "ask in text": lambda gateway: gateway.send("POST", "/v1/ask", body={"input": "Hi", "agent": "react"}),
}
EMBEDS: Mapping[str, Send] = {
    "embeddings": lambda gateway: gateway.send("POST", "/v1/embeddings", body={"model": "mini-embed", "input": "Hi"}),
    "documents": lambda gateway: gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS),
}
SURFACES: Mapping[str, Send] = {**CHATS, **EMBEDS}


@pytest.fixture
def planted_gateway(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway whose configuration and environment have the secrets that it can recognise only by their value."""
    set_credentials(monkeypatch)
    redaction.reload_environment()
    sha = [hashlib.sha256(token.encode()).hexdigest() for token in ("sibling-token", TOKEN)]
    config = CONFIG.replace(sha[0], sha[1]).replace("provider: ollama", "provider: openai")
    gateway.services.settings.config.write_text(config)
    yield gateway
    redaction.reload_environment()


def route_to_upstream(gateway: Gateway, upstream: Upstream, provider: str = "openai") -> None:
    """Let the real provider send its requests to ``upstream``."""

    def create_provider(_: BackendConfig, __: str | None) -> Provider:
        at = backend(provider, base_url=f"https://{HOST}/v1")
        return PROVIDERS[provider](at, PROVIDER_KEY, transport=upstream.transport)

    route(gateway, create_provider)


def route(gateway: Gateway, create_provider: Callable[[BackendConfig, str | None], Provider]) -> None:
    services = gateway.services
    services.__dict__["router"] = Router(
        services.config.llm, services.config.models, lambda _: PROVIDER_KEY, provider_of=create_provider
    )
    for dependent in ("calls", "completions", "agent_models", "engine", "streams", "asker", "rag", "toolbox"):
        services.__dict__.pop(dependent, None)


def assert_clean(reply: Reply | None, capsys: pytest.CaptureFixture[str], batch: Mapping[str, str], path: str = "") -> None:
    """Check that answer and log have no secret, path, host, ARN or storage name."""
    captured = capsys.readouterr()
    outs = {"stdout": captured.out, "stderr": captured.err}
    if reply is not None:
        outs |= {"body": reply.text, "headers": str(dict(reply.headers))}
    for where, out in outs.items():
        assert not leaked_kinds(out, batch), (path, where)
        for place in OUR_NAMES:
            assert place not in out, (path, where)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_providers_error_does_not_leak(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], failure: str) -> None:
    for surface, send in SURFACES.items():
        for batch in share(failure, surface):
            route_to_upstream(planted_gateway, Upstream(FAILURES[failure](text_with_secrets(batch))))
            reply = send(planted_gateway)
            assert reply.status >= 400 or '"error"' in reply.text
            assert_clean(reply, capsys, batch, surface)


ECHOES: Mapping[str, Callable[[Gateway, str], Reply]] = {
    "model": lambda gateway, secret: gateway.send("POST", "/v1/chat/completions", body=CHAT | {"model": secret}),
    "streamed": lambda gateway, secret: gateway.send(
        "POST", "/v1/chat/completions", body=CHAT | {"model": secret, "stream": True}
    ),
    "agent as a model": lambda gateway, secret: gateway.send(
        "POST", "/v1/chat/completions", body=CHAT | {"model": f"agent/{secret}"}
    ),
    "field": lambda gateway, secret: gateway.send("POST", "/v1/embeddings", body={"model": "m", "input": "Hi", secret: 1}),
    "setting": lambda gateway, secret: gateway.send("PUT", "/v1/tenant/config", body={secret: 1}, token="demo-admin-token"),
    "time zone": lambda gateway, secret: gateway.send(
        "POST", "/v1/tools/execute", body={"name": "current_datetime", "arguments": {"timezone": secret}}
    ),
    "parameter": lambda gateway, secret: gateway.send("POST", "/v1/ask", body={"input": "Hi", "params": {secret: 1}}),
    "agent": lambda gateway, secret: gateway.send("POST", "/v1/ask", body={"input": "Hi", "agent": secret}),
    "tool": lambda gateway, secret: gateway.send("POST", "/v1/ask", body={"input": "Hi", "tools": [secret]}),
    "inner": lambda gateway, secret: gateway.send(
        "POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha", secret: 1}]}
    ),
}


@pytest.mark.parametrize("where", ECHOES)
def test_a_secret_in_a_wrong_place_is_not_repeated(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PROVIDER_KEY)  # not used yet
    for secret in (PROVIDER_KEY, TOKEN, BY_FORMAT["openai project"]):
        reply = ECHOES[where](planted_gateway, secret)
        assert 400 <= reply.status < 500 or '"error"' in reply.text
        assert secret[4:16] not in reply.text + str(dict(reply.headers)) + capsys.readouterr().out
    assert "nonsense" in ECHOES[where](planted_gateway, "nonsense").text


@pytest.mark.parametrize("surface", CHATS)
def test_a_models_answer_does_not_leak(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], surface: str) -> None:
    text = "Here: " + " and ".join(SECRETS.values()) + " that was all."

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        for at in range(0, len(text), 7):
            yield ChatDelta(text[at : at + 7])
        yield ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))

    route(planted_gateway, lambda _, __: planted_gateway.model)
    planted_gateway.model.script = answer
    reply = CHATS[surface](planted_gateway)
    assert reply.status == 200
    if reply.headers["content-type"].startswith("text/event-stream"):
        whole_text = _streamed_text(reply)
    else:
        whole_text = json.dumps(reply.json)
    assert "Here: " in whole_text
    assert " that was all." in whole_text
    assert not leaked_kinds(whole_text, SECRETS)
    assert_clean(reply, capsys, SECRETS)
    for text in stored_texts(planted_gateway):
        assert not leaked_kinds(text, SECRETS)


def _streamed_text(reply: Reply) -> str:
    """Return the text of a streamed answer, in OpenAI's chunks or in the events of an agent."""
    if '"choices"' not in reply.text:
        return answer_text(read_events(reply))
    return text_of(chunks_of(reply))


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_of_a_callers_tool_do_not_leak(
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
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(reply) if chunk["choices"]]
        received = "".join(piece["function"]["arguments"] for delta in deltas for piece in delta.get("tool_calls", ()))
    else:
        received = reply.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert len(json.loads(received)["text"]) == len(SECRETS)
    assert not leaked_kinds(received, SECRETS)
    assert_clean(reply, capsys, SECRETS)


@pytest.mark.parametrize("failure", ["errors", "no json", "no connection", "a bug"])
@pytest.mark.parametrize(
    ("name", "arguments", "module"),
    [
        ("wikipedia_summary", {"title": "x"}, "spass.tools.builtin.wikipedia"),
        ("web_search", {"query": "x"}, "spass.tools.search_engine"),
    ],
)
def test_an_error_of_a_tools_server_does_not_leak(
    planted_gateway: Gateway,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: Mapping[str, str],
    module: str,
    failure: str,
) -> None:
    searxng = SearchConfig(provider="searxng", base_url=f"https://{HOST}")
    planted_gateway.services.search_engine = SearchEngine(searxng, lambda _: None)
    for every in BATCHES:
        batch = {kind: secret for kind, secret in every.items() if kind not in BY_VALUE}  # the tool's server does not know these
        words = f"{text_with_secrets(batch)} {PATH} https://{HOST}/w"

        async def send(*_: object, words: str = words, **__: object) -> ServerAnswer:
            match failure:
                case "errors":
                    return ServerAnswer(200, json.dumps({"errors": [{"text": words}]}).encode())
                case "no json":
                    return ServerAnswer(200, words.encode())
                case "no connection":
                    raise httpx.ConnectError(words)
                case _:
                    raise RuntimeError(words)

        monkeypatch.setattr(f"{module}.send", send)
        reply = planted_gateway.send("POST", "/v1/tools/execute", body={"name": name, "arguments": arguments})
        assert reply.status == (500 if failure == "a bug" else 200)
        assert_clean(reply, capsys, batch)


def refusal(code: str, message: str, status: int) -> tuple[Answer, Exception]:
    """Return an error of DynamoDB, and the same error of another service."""
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}).encode()
    return Answer(status, {}, body), ClientError({"Error": {"Code": code, "Message": message}}, "GetItem")


STORAGE: Mapping[str, Callable[[str], tuple[Answer | Exception, Exception]]] = {
    "refused": lambda words: refusal("AccessDeniedException", f"{words} {ARN} on table/{TABLE}", 400),
    "broken": lambda words: refusal("InternalServerError", f"{words} {BUCKET}", 500),
    "unreachable": lambda words: (NoAnswer(f"{HOST} {words}"), EndpointConnectionError(endpoint_url=f"https://{HOST}/{words}")),
    "a bug": lambda words: (RuntimeError(f"{words} {PATH} {TABLE}"),) * 2,
}
STORED: Mapping[str, Send] = {
    **{name: send for name, send in SURFACES.items() if "turn" not in name},  # a turn needs a session first
    "sessions": lambda gateway: gateway.send("GET", "/a1/agents/plain/sessions"),
    "indices": lambda gateway: gateway.send("GET", "/a1/rag/indices"),
    "query": lambda gateway: gateway.send("POST", "/a1/rag/indices/notes/query", body={"query": "x"}),
    "upload": lambda gateway: gateway.send(
        "POST", "/a1/rag/indices/n/uploads", body={"filename": "a.txt", "content_type": "text/plain", "size": 1}
    ),
    "list": lambda gateway: gateway.send("GET", "/a1/rag/indices/notes/uploads"),
    "tree": lambda gateway: gateway.send("GET", "/a1/workspaces/site/tree"),
    "file": lambda gateway: gateway.send("GET", "/a1/workspaces/site/file?path=a"),
    "written file": lambda gateway: gateway.send(
        "PUT", "/a1/workspaces/site/file?path=a", raw=b"a", headers={"Content-Type": "application/octet-stream"}
    ),
    "restore": lambda gateway: gateway.send("POST", "/a1/workspaces/site/restore", body={"version": 1}),
}


@pytest.mark.moto
@pytest.mark.parametrize("failure", STORAGE)
def test_an_error_of_the_storage_does_not_leak(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    assert isinstance(planted_gateway.aws, MotoAws)
    monkeypatch.setattr("spass.aws.dynamodb_client.back_off", lambda _: asyncio.sleep(0))
    route(planted_gateway, lambda _, __: planted_gateway.model)
    for surface, send in STORED.items():
        for batch in share(failure, surface):
            breakdown = planted_gateway.aws.break_down(monkeypatch, *STORAGE[failure](text_with_secrets(batch)))
            reply = send(planted_gateway)
            assert breakdown.calls, f"{surface} calls no storage, so nothing failed"
            assert TABLE not in reply.text + str(dict(reply.headers)), surface
            assert_clean(reply, capsys, batch, surface)


@pytest.mark.parametrize("after_first_delta", [False, True])
def test_an_unexpected_exception_does_not_leak(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], after_first_delta: bool
) -> None:
    route(planted_gateway, lambda _, __: planted_gateway.model)
    for surface, send in CHATS.items():
        for batch in share(surface):

            async def answer(*_: object, words: str = text_with_secrets(batch)) -> AsyncGenerator[ChatDelta, None]:
                if after_first_delta:
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
    "parameters": lambda words: ("/v1/ask", {"input": "x", "params": {"temperature": words, "mode": words}}),
    "an agent": lambda words: ("/v1/ask", {"input": "x", "agent": words}),
    "tools of a kind": lambda words: ("/v1/ask", {"input": "x", "tools": [words]}),
    "a model of a kind": lambda words: ("/v1/ask", {"input": "x", "model": words}),
    "a context": lambda words: ("/v1/ask", {"input": "x", "context": {"conversation": [{"role": words, "content": [words]}]}}),
    "documents": lambda words: ("/a1/rag/indices/notes/documents", {"documents": [{"id": words, "text": 1, "metadata": words}]}),
    "paths": lambda words: ("/a1/workspaces/site/restore", {"version": words, "paths": [[words], words]}),
    "a filter": lambda words: ("/a1/rag/indices/notes/query", {"query": "x", "filter": {"a": {"$in": words}}, "top_k": words}),
}


def test_a_refused_request_is_not_repeated(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    for name, build in INVALID.items():
        for batch in share(name):
            path, body = build(text_with_secrets(batch))
            reply = planted_gateway.send("POST", path, body=body)
            assert reply.status == 400 or '"error"' in reply.text
            assert_clean(reply, capsys, batch, name)


def test_a_secret_as_a_key_of_the_body_is_not_repeated(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, secret in BY_FORMAT.items():
        reply = planted_gateway.send("POST", "/a1/agents/plain/sessions", body={secret: 1})
        assert reply.status == 400
        assert_clean(reply, capsys, {kind: secret} if len(secret) <= 64 else {})  # the error shows the beginning of a longer name


def test_headers_of_a_request_are_not_logged(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    route(planted_gateway, lambda _, __: planted_gateway.model)
    for kind, secret in BY_FORMAT.items():
        headers = {"X-Anything": secret, "User-Agent": secret}
        reply = planted_gateway.send("POST", "/v1/chat/completions", body=CHAT, headers=headers)
        assert reply.status == 200
        assert_clean(reply, capsys, {kind: secret})
        misplaced = planted_gateway.send("GET", "/v1/models", headers={"SPASS-Parent-Request-Id": secret})
        assert misplaced.status == 400
        assert_clean(misplaced, capsys, {kind: secret})
        assert_clean(planted_gateway.send("GET", "/v1/models", token=secret), capsys, {kind: secret})


def test_tokens_and_provider_keys_are_not_logged(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    planted_gateway.send("GET", "/v1/models", token=TOKEN)
    route_to_upstream(planted_gateway, Upstream(json_answer({"choices": [{"message": {"role": "assistant", "content": "Hi"}}]})))
    assert CHATS["chat"](planted_gateway).status == 200
    assert_clean(None, capsys, {kind: SECRETS[kind] for kind in BY_VALUE} | {kind: SECRETS[kind] for kind in BY_CONTEXT})


@pytest.mark.moto
def test_a_failed_ingest_does_not_leak(
    planted_gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(monkeypatch)
    for number, batch in enumerate(BATCHES):
        route_to_upstream(planted_gateway, Upstream(error_answer(text_with_secrets(batch), 400)))
        event = messages(put(f"uploads/demo/books{number}/a.txt", b"Text."), f"no json {text_with_secrets(batch)}", receives=5)
        planted_gateway.work(jobs.work, event)
        reply = planted_gateway.send("GET", f"/a1/rag/indices/books{number}/uploads")
        assert reply.json["uploads"][0]["status"] == "failed"
        assert_clean(reply, capsys, batch)


def test_a_failed_compaction_step_does_not_leak(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((KeyError, ValueError, LookupError)) as raised:
        planted_gateway.work(compaction_step.work, {"tenant": "demo", "job": "job_1", "step": text_with_secrets(BATCHES[0])})
    assert not leaked_kinds(str(raised.value), BATCHES[0])
    assert_clean(None, capsys, BATCHES[0])


def test_a_failure_after_a_disconnect_does_not_leak(planted_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    batch = BATCHES[0]

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("Well ")
        await asyncio.sleep(0.05)
        raise LookupError(text_with_secrets(batch))

    planted_gateway.model.script = answer
    planted_gateway.leave("/v1/chat/completions", {}, CHAT | {"stream": True})
    assert_clean(None, capsys, batch)
