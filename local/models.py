"""Which model answers on this machine: a provider whose key is set, a running Ollama, or the offline stand-in."""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from local.processes import answers
from spass.llm.serving import key_variable, serves
from spass.tenancy.config import BackendConfig, GatewayConfig

STANDIN: Final = "stand-in"
STANDIN_KEY: Final = "SPASS_STANDIN_KEY"
_PROBE_SECONDS: Final = 0.5
_EMBEDS: Final = re.compile(r"embed|minilm|bge|e5-", re.IGNORECASE)

# The tenants of the laptop, with tokens that everybody may know: they are good for this machine alone.
TOKENS: Final[Mapping[str, Mapping[str, bool]]] = {
    "demo": {"demo-admin-token": True, "demo-token": False},
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
    """Who answers for which chat model, who embeds, and the backends to write down. ``unanswered`` maps each model that nobody
    serves here to the variables one of which would change that by a key, ``passed_over`` each configured backend that is
    not asked to the reason.
    """

    backends: tuple[BackendConfig, ...]
    by_model: Mapping[str, str]
    embeddings: Mapping[str, str]
    unanswered: Mapping[str, tuple[str, ...]]
    passed_over: Mapping[str, str]

    def serving(self, model: str) -> tuple[str, ...]:
        """All backends that answer for ``model`` here, those of the lowest priority first."""
        return tuple(backend.name for backend in _in_order(self.backends) if serves(backend, model))

    @property
    def needs_standin(self) -> bool:
        return STANDIN in self.by_model.values()


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


def choose(config: GatewayConfig, *, ollama: Ollama | None, standin_url: str, offline: bool = False) -> Choice:
    """Keep the backends that can answer here, and give every chat model that none of them serves to Ollama or the stand-in.

    ``offline``: of the configured backends none is asked but what runs in this process.
    """
    missing = {backend.name: _missing(backend, offline=offline) for backend in config.llm.backends}
    kept = [backend for backend in config.llm.backends if not missing[backend.name]]
    chat = [model.name for model in config.models if model.kind == "chat"]
    by_model = _served(chat, kept)
    left = [model for model in chat if model not in by_model]
    # A backend without a list would serve every name that no provider claims.
    if ollama is not None and (backend := _ollama_backend(config, ollama, left)).supported_models:
        kept.append(backend)
        by_model |= {model: backend.name for model in left if serves(backend, model)}
        left = [model for model in left if model not in by_model]
    if left:
        kept.append(_standin_backend(standin_url, left))
        by_model |= dict.fromkeys(left, STANDIN)
    embedding = [model.name for model in config.models if model.kind == "embedding"]
    embeddings = _served(embedding, kept)
    unanswered = {model: () if offline else _keys_for(config, model) for model in embedding if model not in embeddings}
    names = {backend.name for backend in kept}
    passed_over = {name: reason for name, reason in missing.items() if reason and name not in names}
    return Choice(tuple(kept), {model: by_model[model] for model in chat}, embeddings, unanswered, passed_over)


def _served(models: Sequence[str], backends: Sequence[BackendConfig]) -> dict[str, str]:
    """The backend that is tried first for each of ``models`` that any serves."""
    ordered = _in_order(backends)
    found = {model: next((backend.name for backend in ordered if serves(backend, model)), None) for model in models}
    return {model: backend for model, backend in found.items() if backend}


def _in_order(backends: Iterable[BackendConfig]) -> list[BackendConfig]:
    return sorted(backends, key=lambda backend: backend.priority)


def _keys_for(config: GatewayConfig, model: str) -> tuple[str, ...]:
    keys = (key_variable(backend) for backend in config.llm.backends if serves(backend, model))
    return tuple(dict.fromkeys(filter(None, keys)))


def overlay(config: GatewayConfig, choice: Choice) -> dict[str, Any]:
    """The operator's file as this machine serves it: its catalogue and defaults, the chosen backends, the laptop's tenants."""
    written: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    written["llm"] = {**written.get("llm", {}), "backends": [_plain(backend) for backend in choice.backends]}
    operators = {tenant["id"]: tenant for tenant in written.get("tenants") or []}
    given = {token.sha256 for tenant in config.tenants for token in tenant.tokens}
    local = [_tenant(operators.get(name, {"id": name}), tokens, given) for name, tokens in TOKENS.items()]
    written["tenants"] = [*local, *(tenant for name, tenant in operators.items() if name not in TOKENS)]
    return written


def _missing(backend: BackendConfig, *, offline: bool) -> str | None:
    """Why a backend cannot answer here; None if its key is set, or it needs none and is there. An Ollama is looked for by itself,
    and Bedrock without a key wants credentials of AWS, which here are those of the emulator."""
    if backend.provider == "embedded":
        return None
    if offline:
        return "--offline"
    if backend.provider == "ollama":
        return "no Ollama answers"
    if key := key_variable(backend):
        return None if os.environ.get(key) else f"no {key}"
    if backend.provider == "bedrock":
        return "no api_key_env: here it needs a Bedrock API key"
    there = backend.base_url is not None and answers(backend.base_url, timeout=_PROBE_SECONDS)
    return None if there else "no answer at its base_url"


def _ollama_backend(config: GatewayConfig, ollama: Ollama, left: Sequence[str]) -> BackendConfig:
    """Ollama with what it has of the catalogue, under its own names, and with one of its models for those in ``left``."""
    configured = next((backend for backend in config.llm.backends if backend.provider == "ollama"), None)
    configured = configured or BackendConfig(name="ollama", provider="ollama")
    names: dict[str, str] = {}
    for model in config.models:
        wanted = configured.model_names.get(model.name, model.name)
        has = next((name for name in ollama.installed if name in {wanted, f"{wanted}:latest"}), None)
        if has:
            names[model.name] = has
        elif model.name in left and ollama.chat_model:
            names[model.name] = ollama.chat_model
    served = {"base_url": ollama.base_url, "supported_models": tuple(names), "model_names": names}
    return configured.model_copy(update=served)


def _standin_backend(url: str, models: Sequence[str]) -> BackendConfig:
    return BackendConfig(
        name=STANDIN, provider="openai", api_key_env=STANDIN_KEY, base_url=url, supported_models=tuple(models), timeout=30
    )


def _plain(backend: BackendConfig) -> dict[str, Any]:
    return backend.model_dump(mode="json", exclude_unset=True) | {"name": backend.name, "provider": backend.provider}


def _tenant(operators: Mapping[str, Any], tokens: Mapping[str, bool], given: Collection[str]) -> dict[str, Any]:
    """A tenant as the operator's file has it, whose own tokens go on beside ``tokens``. Those that the file has ``given`` away
    are left out."""
    merged = list(operators.get("tokens") or ())
    for token, admin in tokens.items():
        name, digest = token.removesuffix("-token"), hashlib.sha256(token.encode()).hexdigest()
        while name in {other["id"] for other in merged}:
            name += "-local"
        if digest not in given:
            merged.append({"id": name, "sha256": digest, "admin": admin})
    return {**operators, "tokens": merged}
