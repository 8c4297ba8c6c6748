"""Which model answers on this machine: a provider whose key is set, a running Ollama, or the offline stand-in."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from local.processes import answers
from spass.tenancy.config import BackendConfig, GatewayConfig

STANDIN_KEY: Final = "SPASS_STANDIN_KEY"
_PROBE_SECONDS: Final = 0.5
_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": ("claude-",),
    "openai": ("gpt-", "o1-", "o3-"),
    "xai": ("grok-",),
}
_EMBEDS: Final = re.compile(r"embed|minilm|bge|e5-", re.IGNORECASE)

# The tenants of the laptop, with tokens that everybody may know: they are good for this machine alone.
TOKENS: Final[Mapping[str, Mapping[str, bool]]] = {
    "demo": {"demo-admin-token": True, "demo-token": False},
    "demo-2": {"demo-2-token": False},
    "other": {"other-token": False},
}


@dataclass(frozen=True, slots=True)
class Ollama:
    """A running Ollama and the models it has."""

    base_url: str
    installed: tuple[str, ...]

    @property
    def chat_model(self) -> str | None:
        """The model that stands in for those of the catalogue which it has not: ``SPASS_OLLAMA_MODEL``, else its first."""
        named = os.environ.get("SPASS_OLLAMA_MODEL")
        return named or next((name for name in self.installed if not _EMBEDS.search(name)), None)


@dataclass(frozen=True, slots=True)
class Choice:
    """Who answers for which chat model, and the backends to write down."""

    backends: tuple[dict[str, Any], ...]
    by_model: Mapping[str, str]

    @property
    def needs_standin(self) -> bool:
        return "stand-in" in self.by_model.values()


def find_ollama(config: GatewayConfig) -> Ollama | None:
    """The Ollama that runs here, if one does: a short knock on ``OLLAMA_BASE_URL``, else on the file's or the usual port."""
    configured = next((b.base_url for b in config.llm.backends if b.provider == "ollama" and b.base_url), None)
    base_url = os.environ.get("OLLAMA_BASE_URL") or configured or "http://localhost:11434"
    try:
        tags = httpx.get(f"{base_url.rstrip('/')}/api/tags", timeout=_PROBE_SECONDS, trust_env=False)
        found = tags.raise_for_status().json()
        installed = tuple(str(model["name"]) for model in found["models"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
    return Ollama(base_url.rstrip("/"), installed)


def choose(config: GatewayConfig, *, ollama: Ollama | None, standin_url: str) -> Choice:
    """Keep the backends that can answer here, and give every chat model that none of them serves to Ollama or the stand-in."""
    kept = [_plain(backend) for backend in config.llm.backends if backend.provider != "ollama" and _usable(backend)]
    chat = [model.name for model in config.models if model.kind == "chat"]
    by_model = {model: backend["name"] for model in chat for backend in kept if serves(backend, model)}
    left = [model for model in chat if model not in by_model]
    if ollama is not None:
        kept.append(_ollama_backend(config, ollama, left))
        by_model |= {model: "ollama" for model in left if model in kept[-1]["supported_models"]}
        left = [model for model in left if model not in by_model]
    if left:
        kept.append(_standin_backend(standin_url, left))
        by_model |= dict.fromkeys(left, "stand-in")
    return Choice(tuple(kept), {model: by_model[model] for model in chat})


def overlay(config: GatewayConfig, choice: Choice) -> dict[str, Any]:
    """The operator's file as this machine serves it: its catalogue and defaults, the chosen backends, the laptop's tenants."""
    written: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    written["llm"] = {**written.get("llm", {}), "backends": list(choice.backends)}
    local = [_tenant(tenant, tokens) for tenant, tokens in TOKENS.items()]
    written["tenants"] = local + [tenant for tenant in written.get("tenants") or [] if tenant["id"] not in TOKENS]
    return written


def serves(backend: Mapping[str, Any], model: str) -> bool:
    """Whether the router will give ``model`` to this backend: it is listed, or the provider's prefix claims it."""
    if backend.get("supported_models"):
        return model in backend["supported_models"]
    return model.startswith(_PREFIXES.get(backend["provider"], ("\0",)))


def _usable(backend: BackendConfig) -> bool:
    if backend.provider == "embedded":
        return True
    if backend.api_key_env:
        return bool(os.environ.get(backend.api_key_env))
    return backend.base_url is not None and answers(backend.base_url, timeout=_PROBE_SECONDS)


def _plain(backend: BackendConfig) -> dict[str, Any]:
    return backend.model_dump(mode="json", exclude_unset=True) | {"name": backend.name, "provider": backend.provider}


def _ollama_backend(config: GatewayConfig, ollama: Ollama, left: Sequence[str]) -> dict[str, Any]:
    configured: dict[str, Any] = {"name": "ollama", "provider": "ollama"}
    for backend in config.llm.backends:
        if backend.provider == "ollama":
            configured = _plain(backend)
    own_names: dict[str, str] = configured.get("model_names", {})
    names: dict[str, str] = {}
    for model in config.models:
        wanted = own_names.get(model.name, model.name)
        has = next((name for name in ollama.installed if name in {wanted, f"{wanted}:latest"}), None)
        if has:
            names[model.name] = has
        elif model.name in left and ollama.chat_model:
            names[model.name] = ollama.chat_model
    return {**configured, "base_url": ollama.base_url, "supported_models": list(names), "model_names": names}


def _standin_backend(url: str, models: Sequence[str]) -> dict[str, Any]:
    return {
        "name": "stand-in",
        "provider": "openai",
        "api_key_env": STANDIN_KEY,
        "base_url": url,
        "supported_models": list(models),
        "timeout": 30,
    }


def _tenant(tenant: str, tokens: Mapping[str, bool]) -> dict[str, Any]:
    return {
        "id": tenant,
        "tokens": [
            {"id": token.removesuffix("-token"), "sha256": hashlib.sha256(token.encode()).hexdigest(), "admin": admin}
            for token, admin in tokens.items()
        ],
    }
