"""A running gateway whose models fail on command, and requests to its sessions.

The model ``condenser`` writes summaries. Every other model may answer that the prompt is too long.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from spass.testing.http_server import HttpAnswer, json_answer
from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import Gateway, running_gateway
from tests.e2e.scripted_gateway import reply

CONDENSER: Final = "condenser"
SUMMARY: Final = "Marty moves to Berlin on 3 May and pays 1200 Euro."
_HANG_SECONDS: Final = 4.0
_USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}

TOO_LONG: Final = {
    "error": {
        "message": "This model's maximum context length is 500 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
SAID: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "fine": ({"content": SUMMARY}, "stop"),
    "empty": ({"content": ""}, "stop"),
    "blank": ({"content": " \n\t "}, "stop"),
    "a tool call": ({"tool_calls": [_CALL]}, "tool_calls"),
    "a refusal": ({"refusal": "I cannot help with that."}, "stop"),
    "filtered": ({"content": "Marty moves"}, "content_filter"),
    "cut off": ({"content": "Marty moves to"}, "length"),
}
"""Possible answers of the summary model, with their finish reasons."""
BROKEN: Final = ("status 500", "status 401", "status 400", "garbage", "an empty stream", "an error in a 200", "gone", "slow")
"""Possible failures of the summary model."""


@dataclass
class Moods:
    """A provider with a configurable next answer. It records the requests that it receives."""

    summary: str = "fine"
    too_long: int = 0
    delay: float = 0
    asked: list[Body] = field(default_factory=list)

    def answer(self, body: Body) -> Completion | HttpAnswer | None:
        self.asked.append(body)
        if body["model"] == CONDENSER:
            time.sleep(self.delay)
            return self._summary()
        if self.too_long:
            self.too_long -= 1
            return json_answer(TOO_LONG, 400)
        return Completion(reply(body), usage=_USAGE)

    def _summary(self) -> Completion | HttpAnswer | None:
        if answer := SAID.get(self.summary):
            return Completion(*answer, usage=_USAGE)
        match self.summary:
            case "status 500":
                return json_answer({"error": {"message": "Internal error."}}, 500)
            case "status 401":
                return json_answer({"error": {"message": "Incorrect API key provided: sk-secret."}}, 401)
            case "status 400":
                return json_answer({"error": {"message": "Unsupported parameter.", "code": "unsupported_parameter"}}, 400)
            case "garbage":
                return HttpAnswer(b"<html>It works!</html>", content_type="text/html")
            case "an empty stream":
                return HttpAnswer(b"data: [DONE]\n\n", content_type="text/event-stream")
            case "an error in a 200":
                error = b'data: {"error": {"message": "Overloaded.", "code": 500}}\n\ndata: [DONE]\n\n'
                return HttpAnswer(error, content_type="text/event-stream")
            case "gone":
                return None
            case "slow":
                time.sleep(_HANG_SECONDS)
                return None
        raise LookupError(self.summary)

    @property
    def summaries(self) -> list[Body]:
        return [request for request in self.asked if request["model"] == CONDENSER]


TOKENS: Final = {"acme": "acme-token", "rival": "rival-token"}
SECONDS: Final = 30.0
AGENTS: Final = {
    "plain": "name: plain\nmodel: talker\ndescription: Talks.\nsystem_prompt: Answer.\n",
    "narrow": "name: narrow\nmodel: narrow\ndescription: Talks little.\n",
    "searching": "name: searching\nmodel: narrow\ndescription: Remembers.\ntools: [lineage_search]\n",
}
LONG: Final = "Marty is a zebra who moves to Berlin on 3 May. " * 40
"""More than four fifths of the narrow model's window."""


@contextmanager
def faulty_gateway(folder: Path, faults: Moods) -> Iterator[Gateway]:
    """Serve the agents ``plain``, ``narrow`` and ``searching`` to two tenants until the block ends."""
    tenants = "\n".join(
        f"  - {{id: {tenant}, tokens: [{{id: {tenant}, sha256: {hashlib.sha256(token.encode()).hexdigest()}, "
        "allowed_models: [talker, narrow]}]}"
        for tenant, token in TOKENS.items()
    )
    with serve_model(faults.answer) as upstream:
        config = f"""
llm:
  retries: 1
  retry_base_delay: 0.01
  backends:
    - {{name: moody, provider: openai, base_url: "{upstream}/v1", supported_models: [talker, narrow, {CONDENSER}], timeout: 1}}
models:
  - {{name: talker, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: narrow, context_window: 500, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: {CONDENSER}, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: {CONDENSER}}}
tenants:
{tenants}
"""
        with running_gateway(folder, config, AGENTS) as gateway:
            yield gateway


def at(session: str, below: str = "", agent: str = "plain") -> str:
    return f"/a1/agents/{agent}/sessions/{session}{below}"


def create_session(
    client: httpx.Client, *, turns: int = 2, keep: int = 2, agent: str = "plain", first: str = "I pay 1200 Euro."
) -> str:
    """Create a session of ``turns`` turns and return its id. ``first`` is its first message."""
    body = {"title": "Moving", "compact_keep_last_n": keep}
    session = str(client.post(f"/a1/agents/{agent}/sessions", json=body).raise_for_status().json()["id"])
    for message in [first, *(f"question {number}" for number in range(1, turns))]:
        send_message(client, session, message, agent=agent).raise_for_status()
    return session


def send_message(client: httpx.Client, session: str, message: str, *, agent: str = "plain", **headers: str) -> httpx.Response:
    return client.post(at(session, "/messages", agent), json={"message": message}, headers=headers)


def compact(client: httpx.Client, session: str, agent: str = "plain", **headers: str) -> httpx.Response:
    return client.post(at(session, "/compact", agent), headers=headers)


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def visible_state(client: httpx.Client, session: str, agent: str = "plain") -> list[Any]:
    """Return a session, its messages and its lineage as the API shows them."""
    return [client.get(at(session, below, agent)).raise_for_status().json() for below in ("", "/messages", "/lineage")]


def wait_for_job(client: httpx.Client, location: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while True:
        job: dict[str, Any] = client.get(location).raise_for_status().json()
        if job["status"] in ("succeeded", "failed"):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def chain_of(client: httpx.Client, members: int) -> list[str]:
    chain = [create_session(client)]
    while len(chain) < members:
        chain.append(str(compact(client, chain[-1]).raise_for_status().json()["successor_session_id"]))
        send_message(client, chain[-1], f"question {len(chain)}").raise_for_status()
    return chain
