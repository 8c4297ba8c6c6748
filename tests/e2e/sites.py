"""What a test file needs of a gateway: tenants, agents, and models that an upstream of its own answers for.

Most files add a site to the gateway that all files of a worker share. The tenants keep them apart.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from spass.testing.http_server import HttpAnswer, HttpRequest, RequestHandler, serve

Entry: TypeAlias = Mapping[str, Any]
"""An entry of gateway.yaml, or the file of an agent."""

EMBEDDING: Final = "all-minilm-l6-v2"


def token(text: str, **rights: object) -> Entry:
    """Return the entry of the token ``text``, whose id is the text without ``-token``."""
    return {"id": text.removesuffix("-token"), "sha256": hashlib.sha256(text.encode()).hexdigest(), **rights}


def tenant(name: str, *tokens: Entry, **fields: object) -> Entry:
    """Return the entry of a tenant. Without ``tokens`` it has the token ``<name>-token``."""
    return {"id": name, "tokens": tokens or [token(f"{name}-token")], **fields}


def chat_model(name: str, **fields: object) -> Entry:
    """Return the entry of a chat model of the catalogue, for 1 and 2 US dollars per million tokens."""
    return {"name": name, "context_window": 100_000, "usd_per_mtok_in": 1, "usd_per_mtok_out": 2, **fields}


def agent_files(*agents: Entry) -> Mapping[str, str]:
    """Return the files of agents, by name. A description is added where there is none."""
    return {agent["name"]: json.dumps({"description": "Helps.", **agent}) for agent in agents}


@dataclass(frozen=True)
class Site:
    """Tenants, models and agents. ``respond`` answers the requests to the models, as if it had the server for itself.

    Names of models, agents and tenants are those of the whole gateway: each site chooses its own. A backend needs only what
    differs from one that speaks OpenAI's protocol and serves all models of the site.
    """

    name: str
    respond: RequestHandler
    models: Sequence[Entry]
    agents: Sequence[Entry] = ()
    tenants: Sequence[Entry] = ()
    backends: Sequence[Entry] = field(default=({},))

    def add_to(self, config: dict[str, Any], upstream: str) -> None:
        """Add the site to a ``gateway.yaml``, with backends at ``upstream``."""
        names = [model["name"] for model in self.models]
        common = {"provider": "openai", "base_url": f"{upstream}/{self.name}/v1"}
        for backend in self.backends:
            config["llm"]["backends"].append({"name": self.name, "supported_models": names, **common, **backend})
        config["models"] += self.models
        summaries = {"compact_summary_model": names[0]}
        for entry in self.tenants or [tenant(self.name)]:
            config["tenants"].append({**entry, "defaults": {**summaries, **entry.get("defaults", {})}})


SHARED: Final[dict[str, Site]] = {}
"""The sites of the gateway that all files of a worker share, by name. The files that are collected add theirs."""


def share(site: Site) -> Site:
    """Add a site to the shared gateway."""
    SHARED[site.name] = site
    return site


def empty_config() -> dict[str, Any]:
    """Return a configuration with the embedding model alone, which tries nothing twice."""
    embedding = {"name": EMBEDDING, "kind": "embedding", "dimensions": 384, "context_window": 256}
    backend = {"name": "embedded", "provider": "embedded", "supported_models": [EMBEDDING]}
    return {"llm": {"retries": 0, "backends": [backend]}, "models": [embedding], "tenants": []}


@contextmanager
def serve_sites(sites: Sequence[Site]) -> Iterator[str]:
    """Serve the models of the sites until the block ends. Yield the URL for ``Site.add_to``."""
    handlers = {site.name: site.respond for site in sites}

    def respond(request: HttpRequest) -> HttpAnswer | None:
        _, name, rest = request.path.split("/", 2)
        return handlers[name](replace(request, path=f"/{rest}"))

    with serve(respond) as url:
        yield url
