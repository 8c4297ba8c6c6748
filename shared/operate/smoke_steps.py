"""The steps of `operate smoke`. Each uses a gateway as its clients do, and returns in words what it has seen."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import uuid4

import httpx

from operate.gateway import Gateway, Json, StepFailed, check_success, read
from operate.leftovers import Leftover

_CALCULATION: Final = "What is 2+2?"
_COUNTING: Final = "Count from 1 to 100, one number per line."
_FILE: Final = "smoke.md"
_TEXT: Final = b"# Smoke test\n\nThe gateway was tried from outside.\n"
_AGENTS: Final = "/v1/managed-agents"
_TELLING_SECONDS: Final = 2.0
"""A model call that takes less does not show whether a proxy buffers."""

Need: TypeAlias = Literal["nothing", "a chat model", "an embedding model"]


@dataclass(slots=True)
class Smoke:
    """A smoke test of one gateway. ``mark`` names all that it makes. ``missing`` says why steps with a need are left out."""

    gateway: Gateway
    agent: str | None
    model: str | None
    release: str | None = None
    mark: str = field(default_factory=lambda: f"operate-smoke-{uuid4().hex[:12]}")
    session: str = ""
    missing: dict[Need, str] = field(default_factory=dict)
    leftovers: list[Leftover] = field(default_factory=list)

    @property
    def index(self) -> str:
        return f"/a1/rag/indices/{self.mark}"

    @property
    def sessions(self) -> str:
        return f"/a1/agents/{self.agent}/sessions"

    async def create(self, leftover: Leftover, body: Json) -> str:
        """Create an item of the list of ``leftover``, which is recorded first because the answer may be lost. Return its id."""
        self.leftovers.append(leftover)
        answer = await self.gateway.client.post(leftover.path, json=body)
        leftover.is_settled = not answer.is_server_error
        return str(read(answer, httpx.codes.CREATED)["id"])


async def _health(smoke: Smoke) -> str:
    health = read(await smoke.gateway.stranger.get("/healthz"), httpx.codes.OK)
    if health["status"] != "ok":
        raise StepFailed("The gateway does not say that it is up.")
    release = health.get("release", "unknown")  # the first release did not say it
    if smoke.release not in (None, release):
        raise StepFailed(f"The gateway is release {release}, not {smoke.release}.")
    return f"up, release {release}"


async def _unauthorized(smoke: Smoke) -> str:
    await smoke.gateway.refusal("GET", "/v1/models", 401, "missing_token")
    await smoke.gateway.refusal("GET", "/v1/models", 401, "invalid_token", token=smoke.mark)
    return "without a token and with an unknown one"


async def _unknown_path(smoke: Smoke) -> str:
    await smoke.gateway.refusal("GET", f"/v1/{smoke.mark}", 404, "route_not_found")
    return "for an unknown path"


async def _wrong_method(smoke: Smoke) -> str:
    headers = await smoke.gateway.refusal("DELETE", "/v1/models", 405, "method_not_allowed")
    if "GET" not in headers.get("Allow", ""):
        raise StepFailed("The refusal has no header Allow that names GET.")
    return f"with Allow: {headers['Allow']}"


async def _models(smoke: Smoke) -> str:
    """Choose the agent, and find out which steps have no model."""
    models = (await smoke.gateway.call("GET", "/v1/models"))["data"]
    agents = (await smoke.gateway.call("GET", "/a1/agents?limit=1000"))["agents"]
    chat = [model["id"] for model in models if model["kind"] == "chat" and not model["id"].startswith("agent/")]
    usable = [agent for agent in agents if agent["usable"] or smoke.model is not None]
    for kind, name, names in (("model", smoke.model, chat), ("agent", smoke.agent, [agent["name"] for agent in usable])):
        if name is not None and name not in names:
            raise StepFailed(f"This token cannot use the {kind} '{name}'. It can use: {', '.join(names) or 'none'}")
    plain = sorted((agent for agent in usable if agent["kind"] == "orchestrator"), key=lambda agent: len(agent["tools"]))
    smoke.agent = smoke.agent or next((agent["name"] for agent in plain), None)
    if not chat:
        smoke.missing["a chat model"] = "this token can use no chat model"
    elif smoke.agent is None:
        smoke.missing["a chat model"] = "this token can use no agent of the kind orchestrator; name another one with --agent"
    if not any(model["kind"] == "embedding" for model in models):
        smoke.missing["an embedding model"] = "this token can use no embedding model"
    return f"{len(chat)} chat models; answers come from {smoke.agent or 'nobody'}{f' with {smoke.model}' if smoke.model else ''}"


async def _chat(smoke: Smoke) -> str:
    model = smoke.model or f"agent/{smoke.agent}"
    body = {"model": model, "messages": [{"role": "user", "content": _CALCULATION}]}
    answer = await smoke.gateway.call("POST", "/v1/chat/completions", body)
    if not answer["choices"][0]["message"]["content"]:
        raise StepFailed(f"The answer of {model} is empty.")
    return f"{model} answered"


async def _stream(smoke: Smoke) -> str:
    """Stream a turn of a new session, and compare when its events came with how long the model wrote."""
    chat = f"/c1/agents/{smoke.agent}/chat"
    leftover = Leftover(path=smoke.sessions, mark=smoke.mark, items="sessions", name="title", stop=f"{chat}/{smoke.mark}")
    options = {"title": smoke.mark, "compact_strategy": "manual", "compact_keep_last_n": 0}
    smoke.session = await smoke.create(leftover, options)
    body: Json = {"message_id": smoke.mark, "session_id": smoke.session, "messages": [{"role": "user", "content": _COUNTING}]}
    start, times, events = time.monotonic(), [], []
    async for event in smoke.gateway.events(chat, body | ({"model": smoke.model} if smoke.model else {})):
        times.append(time.monotonic() - start)
        events.append(event)
    if not events or events[-1]["type"] != "done":
        raise StepFailed(f"The stream broke off after {len(times)} events.")
    seen = f"the first event came after {times[0]:.1f} s, the last one after {times[-1]:.1f} s"
    calls = (await smoke.gateway.call("GET", f"/v1/audit/{events[-1]['request_id']}"))["calls"]
    wrote = max((call["latency_ms"] for call in calls), default=0) / 1000
    if wrote < _TELLING_SECONDS:
        return f"{seen}, too soon to tell whether a proxy buffers"
    # The first event leaves before the model is called, so without a buffer the events take as long as the call.
    if times[-1] - times[0] < wrote / 2:
        raise StepFailed(f"A proxy buffers the stream: the model wrote for {wrote:.1f} s, but {seen}.")
    return seen


async def _file(smoke: Smoke) -> str:
    uploads = f"{smoke.index}/uploads"
    body = {"filename": _FILE, "content_type": "text/markdown", "size": len(_TEXT)}
    form = await smoke.gateway.call("POST", uploads, body)
    leftover = Leftover(path=smoke.index, mark=smoke.mark)
    smoke.leftovers.append(leftover)
    files = {"file": (_FILE, _TEXT, "text/markdown")}
    sent = await smoke.gateway.stranger.post(form["url"], data=form["fields"], files=files)
    if not sent.is_success:
        leftover.is_settled = not sent.is_server_error
        raise StepFailed(f"The bucket answered {sent.status_code} to the file.")
    upload = await smoke.gateway.wait(f"{uploads}/{form['upload_id']}")
    leftover.is_settled = True
    check_success(upload)
    return f"documents made of it: {upload['documents_ingested']}"


async def _query(smoke: Smoke) -> str:
    found = await smoke.gateway.call("POST", f"{smoke.index}/query", {"query": "Who tried the gateway?", "top_k": 1})
    if [hit["metadata"]["source"] for hit in found["results"]] != [_FILE]:
        raise StepFailed("The query did not find the file.")
    return "found the file"


async def _compaction(smoke: Smoke) -> str:
    answer = await smoke.gateway.client.post(f"{smoke.sessions}/{smoke.session}/compact")
    if answer.status_code == httpx.codes.ACCEPTED:  # it takes longer than the gateway waits for it
        job = await smoke.gateway.wait(f"/a1/jobs/{answer.json()['job_id']}")
        check_success(job)
        result = job["result"]
    else:
        result = read(answer, httpx.codes.OK)
    return f"{result['summary_model']} summarised {result['compacted_message_count']} messages"


async def _run(smoke: Smoke) -> str:
    leftover = Leftover(path=_AGENTS, mark=smoke.mark, items="agents", name="name")
    # Only a kind takes a model: an agent's file has its own.
    answers = {"agent": "orchestrator", "model": smoke.model} if smoke.model else {"agent": smoke.agent}
    agent = await smoke.create(leftover, {"name": smoke.mark, **answers})
    run = (await smoke.gateway.call("POST", f"{_AGENTS}/{agent}/run", {"input": _CALCULATION}, status=202))["id"]
    leftover.stop = f"{_AGENTS}/{agent}/runs/{run}"
    check_success(await smoke.gateway.wait(leftover.stop))
    return "the run of a managed agent succeeded"


class Step(NamedTuple):
    """A step, its time limit in seconds, and what it needs."""

    name: str
    seconds: int
    needs: Need
    act: Callable[[Smoke], Awaitable[str]]


STEPS: Final[tuple[Step, ...]] = (
    Step("health", 30, "nothing", _health),
    Step("401", 30, "nothing", _unauthorized),
    Step("404", 30, "nothing", _unknown_path),
    Step("405", 30, "nothing", _wrong_method),
    Step("models", 30, "nothing", _models),
    Step("chat", 120, "a chat model", _chat),
    Step("stream", 240, "a chat model", _stream),
    Step("file", 240, "an embedding model", _file),
    Step("query", 30, "an embedding model", _query),
    Step("compaction", 240, "a chat model", _compaction),
    Step("run", 240, "a chat model", _run),
)
