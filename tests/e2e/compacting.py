"""A started gateway whose models are in a mood, and what its clients do with sessions."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.e2e.conftest import Gateway
from tests.e2e.moody_upstream import CONDENSER, Moods, moody_upstream

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
def moody_gateway(folder: Path, moods: Moods) -> Iterator[Gateway]:
    """Serves the agents ``plain``, ``narrow`` and ``searching`` to two tenants until the block ends."""
    (folder / "agents").mkdir()
    for name, text in AGENTS.items():
        (folder / "agents" / f"{name}.yaml").write_text(text)
    tenants = "\n".join(
        f"  - {{id: {tenant}, tokens: [{{id: {tenant}, sha256: {hashlib.sha256(token.encode()).hexdigest()}, "
        "allowed_models: [talker, narrow]}]}"
        for tenant, token in TOKENS.items()
    )
    with moody_upstream(moods) as upstream:
        (folder / "gateway.yaml").write_text(
            f"""
llm:
  retries: 1
  retry_base_delay: 0.01
  backends:
    - {{name: moody, provider: openai, base_url: "{upstream}", supported_models: [talker, narrow, {CONDENSER}], timeout: 1}}
models:
  - {{name: talker, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: narrow, context_window: 500, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: {CONDENSER}, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: {CONDENSER}}}
tenants:
{tenants}
"""
        )
        environment = {"SPASS_CONFIG": str(folder / "gateway.yaml"), "SPASS_AGENTS": str(folder / "agents")}
        gateway = Gateway(folder / "home", environment=environment)
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()


def at(session: str, below: str = "", agent: str = "plain") -> str:
    return f"/a1/agents/{agent}/sessions/{session}{below}"


def started(client: httpx.Client, *, turns: int = 2, keep: int = 2, agent: str = "plain", first: str = "I pay 1200 Euro.") -> str:
    """A session of so many turns, the first of which is ``first``."""
    body = {"title": "Moving", "compact_keep_last_n": keep}
    session = str(client.post(f"/a1/agents/{agent}/sessions", json=body).raise_for_status().json()["id"])
    for message in [first, *(f"question {number}" for number in range(1, turns))]:
        say(client, session, message, agent=agent).raise_for_status()
    return session


def say(client: httpx.Client, session: str, message: str, *, agent: str = "plain", **headers: str) -> httpx.Response:
    return client.post(at(session, "/messages", agent), json={"message": message}, headers=headers)


def compact(client: httpx.Client, session: str, agent: str = "plain", **headers: str) -> httpx.Response:
    return client.post(at(session, "/compact", agent), headers=headers)


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def seen(client: httpx.Client, session: str, agent: str = "plain") -> list[Any]:
    """All that a client can see of a session."""
    return [client.get(at(session, below, agent)).raise_for_status().json() for below in ("", "/messages", "/lineage")]


def ended(client: httpx.Client, location: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while True:
        job: dict[str, Any] = client.get(location).raise_for_status().json()
        if job["status"] in ("succeeded", "failed"):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def chain_of(client: httpx.Client, members: int) -> list[str]:
    chain = [started(client)]
    while len(chain) < members:
        chain.append(str(compact(client, chain[-1]).raise_for_status().json()["successor_session_id"]))
        say(client, chain[-1], f"question {len(chain)}").raise_for_status()
    return chain
