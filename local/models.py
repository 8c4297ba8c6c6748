"""Choose the models that answer on this machine: a provider whose key is set, a running Ollama, or the offline stand-in."""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from local import ollama
from local.processes import answers
from spass.llm.backends import key_variable, serves
from spass.tenancy.config import BackendConfig, GatewayConfig

STANDIN: Final = "stand-in"
STANDIN_KEY: Final = "SPASS_STANDIN_KEY"
_PROBE_SECONDS: Final = 0.5

# The tenants of the laptop, with tokens that everybody may know: they are good for this machine alone.
TOKENS: Final[Mapping[str, Mapping[str, bool]]] = {
    "demo": {"demo-admin-token": True, "demo-token": False},
    "other": {"other-token": False},
}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The backends to write down, the one that answers for each chat model, and the one that embeds with each embedding model.

    ``unanswered`` maps each model that nothing serves here to the variables of which one with a key would change that.
    ``passed_over`` maps each configured backend that is not asked to the reason. ``substitutes`` maps each model that another
    one of Ollama answers for, because ``SPASS_OLLAMA_MODEL`` says so, to that one. ``ollama_models`` are the chat models of the
    Ollama servers that were found. ``stand_in_problem`` says why ``SPASS_OLLAMA_MODEL`` has no effect, if it names a model and
    the stand-in answers.
    """

    backends: tuple[BackendConfig, ...]
    by_model: Mapping[str, str]
    embeddings: Mapping[str, str]
    unanswered: Mapping[str, tuple[str, ...]]
    passed_over: Mapping[str, str]
    substitutes: Mapping[str, str]
    ollama_models: Sequence[str]
    stand_in_problem: str | None

    def serving(self, model: str) -> tuple[str, ...]:
        """All backends that answer for ``model`` here, those of the lowest priority first."""
        return tuple(backend.name for backend in _in_order(self.backends) if serves(backend, model))

    @property
    def needs_standin(self) -> bool:
        return STANDIN in self.by_model.values()


def choose_models(config: GatewayConfig, *, found: ollama.Found, standin_url: str, offline: bool = False) -> ModelChoice:
    """Keep the backends that can answer here, and give every chat model that none of them serves to the stand-in.

    ``found`` are the Ollama servers that answer. Each serves what its backend says and no other model, except that the one named
    in ``SPASS_OLLAMA_MODEL`` takes the stand-in's place. If ``offline``, no backend is asked but those in this process.
    """
    kept, passed_over = _usable(config, found, offline=offline)
    chat = [model.name for model in config.models if model.kind == "chat"]
    served = _primary_backends(chat, kept.values())
    left = [model for model in chat if model not in served]
    substitutes: dict[str, str] = {}
    if left and (one := ollama.stand_in(config, found)):
        host, name = one
        kept[host.name] = ollama.extend(kept.get(host.name) or ollama.narrow(host, config, found), left, name)
        passed_over.pop(host.name, None)
        substitutes = dict.fromkeys(left, name)
    elif left:
        kept[STANDIN] = _standin_backend(standin_url, left)
    embedding = [model.name for model in config.models if model.kind == "embedding"]
    embeddings = _primary_backends(embedding, kept.values())
    return ModelChoice(
        backends=tuple(kept.values()),
        by_model=_primary_backends(chat, kept.values()),
        embeddings=embeddings,
        unanswered={model: () if offline else _keys_for(config, model) for model in embedding if model not in embeddings},
        passed_over=passed_over,
        substitutes=substitutes,
        ollama_models=ollama.chat_models(found),
        stand_in_problem=ollama.stand_in_problem(config, found) if STANDIN in kept and not offline else None,
    )


def _usable(config: GatewayConfig, found: ollama.Found, *, offline: bool) -> tuple[dict[str, BackendConfig], dict[str, str]]:
    """Return the backends that can answer here, by name, and why each other one of the file cannot."""
    kept: dict[str, BackendConfig] = {}
    passed_over: dict[str, str] = {}
    for backend in config.llm.backends:
        if reason := _missing_reason(backend, config, found, offline=offline):
            passed_over[backend.name] = reason
        else:
            kept[backend.name] = backend
    for backend in ollama.backends(config):
        if backend.name not in passed_over and ollama.address(backend) in found:
            narrowed = ollama.narrow(backend, config, found)
            if narrowed.supported_models:  # one without a list would serve every name that no provider claims
                kept[backend.name] = narrowed
    return kept, passed_over


def _primary_backends(models: Sequence[str], backends: Iterable[BackendConfig]) -> dict[str, str]:
    """Return the backend that is tried first for each of ``models`` that any serves."""
    ordered = _in_order(backends)
    found = {model: next((backend.name for backend in ordered if serves(backend, model)), None) for model in models}
    return {model: backend for model, backend in found.items() if backend}


def _in_order(backends: Iterable[BackendConfig]) -> list[BackendConfig]:
    return sorted(backends, key=lambda backend: backend.priority)


def _keys_for(config: GatewayConfig, model: str) -> tuple[str, ...]:
    keys = (key_variable(backend) for backend in config.llm.backends if serves(backend, model))
    return tuple(dict.fromkeys(filter(None, keys)))


def overlay(config: GatewayConfig, choice: ModelChoice) -> dict[str, Any]:
    """The operator's file as this machine serves it: its catalogue and defaults, the chosen backends, the laptop's tenants."""
    written: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    written["llm"] = {**written.get("llm", {}), "backends": [_plain(backend) for backend in choice.backends]}
    operators = {tenant["id"]: tenant for tenant in written.get("tenants") or []}
    given = {token.sha256 for tenant in config.tenants for token in tenant.tokens}
    local = [_tenant(operators.get(name, {"id": name}), tokens, given) for name, tokens in TOKENS.items()]
    written["tenants"] = [*local, *(tenant for name, tenant in operators.items() if name not in TOKENS)]
    return written


def _missing_reason(backend: BackendConfig, config: GatewayConfig, found: ollama.Found, *, offline: bool) -> str | None:
    """Say why a backend cannot answer here. Return None if its key is set, or it needs none and is there. Bedrock without a key
    wants credentials of AWS, which here are those of the emulator."""
    if backend.provider == "embedded":
        return None
    if offline:
        return "--offline"
    if key := key_variable(backend):
        if not os.environ.get(key):
            return f"no {key}"
    elif backend.provider == "bedrock":
        return "no api_key_env: here it needs a Bedrock API key"
    if backend.provider == ollama.PROVIDER:
        return _missing_ollama(backend, config, found)
    if key or (backend.base_url is not None and answers(backend.base_url, timeout=_PROBE_SECONDS)):
        return None
    return "no answer at its base_url"


def _missing_ollama(backend: BackendConfig, config: GatewayConfig, found: ollama.Found) -> str | None:
    if ollama.address(backend) not in found:
        return f"no Ollama answers at {ollama.address(backend)}"
    if ollama.narrow(backend, config, found).supported_models:
        return None
    lacks = ollama.missing(backend, config, found)
    pulls = " and ".join(f"`ollama pull {name}`" for name in lacks)
    return f"{ollama.address(backend)} lacks {', '.join(lacks)}: run {pulls}" if lacks else "the catalogue has no model for it"


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
