"""Choose the models that answer on this machine: a provider whose key is set, a running Ollama, or the offline stand-in."""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from local import ollama
from local.processes import answers
from spass.models.backends import STANDIN, key_variable, serves
from spass.tenancy.config import BackendConfig, GatewayConfig

STANDIN_KEY: Final = "SPASS_STANDIN_KEY"
_PROBE_SECONDS: Final = 0.5

# The tenants of the laptop and their tokens. The tokens are public and valid only on this machine. True means an admin's token.
TOKENS: Final[Mapping[str, Mapping[str, bool]]] = {
    "demo": {"demo-admin-token": True, "demo-token": False},
    "other": {"other-token": False},
}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The backends that this machine uses. ``by_model`` and ``embeddings`` map each chat or embedding model to its first backend.

    ``unanswered`` maps each model without a backend to the environment variables that can have a key for it; one is enough.
    ``unused`` maps each configured backend that is not used to the reason. ``substitutes`` maps each model to the Ollama
    model that answers in its place because of ``SPASS_OLLAMA_MODEL``. ``ollama_models`` are the chat models of the Ollama
    servers that answer. ``stand_in_problem`` says why ``SPASS_OLLAMA_MODEL`` has no effect, if it names a model and the stand-in
    answers.
    """

    backends: tuple[BackendConfig, ...]
    by_model: Mapping[str, str]
    embeddings: Mapping[str, str]
    unanswered: Mapping[str, tuple[str, ...]]
    unused: Mapping[str, str]
    substitutes: Mapping[str, str]
    ollama_models: Sequence[str]
    stand_in_problem: str | None

    def serving(self, model: str) -> tuple[str, ...]:
        """Return the names of all backends that serve ``model`` here, by ascending priority number: the first is tried first."""
        return tuple(backend.name for backend in _by_priority(self.backends) if serves(backend, model))

    @property
    def needs_standin(self) -> bool:
        return STANDIN in self.by_model.values()


def choose_models(config: GatewayConfig, *, servers: ollama.Servers, standin_url: str, offline: bool = False) -> ModelChoice:
    """Choose the backends that can answer here. The stand-in serves the chat models that none of them serves.

    ``servers`` are the Ollama servers that answer. Each serves only the models of its backend, except that the model named in
    ``SPASS_OLLAMA_MODEL`` takes the stand-in's place. With ``offline``, use only backends in this process.
    """
    usable, unused = _usable_backends(config, servers, offline=offline)
    chat = [model.name for model in config.models if model.kind == "chat"]
    served = _primary_backends(chat, usable.values())
    unserved = [model for model in chat if model not in served]
    substitutes: dict[str, str] = {}
    if unserved and (replacement := ollama.stand_in(config, servers)):
        host, name = replacement
        usable[host.name] = ollama.extend(usable.get(host.name) or ollama.narrow(host, config, servers), unserved, name)
        unused.pop(host.name, None)
        substitutes = dict.fromkeys(unserved, name)
    elif unserved:
        usable[STANDIN] = _standin_backend(standin_url, unserved)
    embedding = [model.name for model in config.models if model.kind == "embedding"]
    embeddings = _primary_backends(embedding, usable.values())
    return ModelChoice(
        backends=tuple(usable.values()),
        by_model=_primary_backends(chat, usable.values()),
        embeddings=embeddings,
        unanswered={model: () if offline else _keys_for(config, model) for model in embedding if model not in embeddings},
        unused=unused,
        substitutes=substitutes,
        ollama_models=ollama.chat_models(servers),
        stand_in_problem=ollama.stand_in_problem(config, servers) if STANDIN in usable and not offline else None,
    )


def _usable_backends(
    config: GatewayConfig, servers: ollama.Servers, *, offline: bool
) -> tuple[dict[str, BackendConfig], dict[str, str]]:
    """Return the backends that can answer here, by name, and why each other one of the file cannot."""
    usable: dict[str, BackendConfig] = {}
    unused: dict[str, str] = {}
    for backend in config.llm.backends:
        if reason := _missing_reason(backend, config, servers, offline=offline):
            unused[backend.name] = reason
        else:
            usable[backend.name] = backend
    for backend in ollama.backends(config):
        if backend.name not in unused and ollama.address(backend) in servers:
            narrowed = ollama.narrow(backend, config, servers)
            if narrowed.supported_models:  # without a list, a backend serves every name that no provider claims
                usable[backend.name] = narrowed
    return usable, unused


def _primary_backends(models: Sequence[str], backends: Iterable[BackendConfig]) -> dict[str, str]:
    """Map each of ``models`` to the backend that the gateway tries first. Omit models without a backend."""
    ordered = _by_priority(backends)
    first = {model: next((backend.name for backend in ordered if serves(backend, model)), None) for model in models}
    return {model: backend for model, backend in first.items() if backend}


def _by_priority(backends: Iterable[BackendConfig]) -> list[BackendConfig]:
    return sorted(backends, key=lambda backend: backend.priority)


def _keys_for(config: GatewayConfig, model: str) -> tuple[str, ...]:
    keys = (key_variable(backend) for backend in config.llm.backends if serves(backend, model))
    return tuple(dict.fromkeys(filter(None, keys)))


def overlay(config: GatewayConfig, choice: ModelChoice) -> dict[str, Any]:
    """Return the operator's file with the chosen backends instead of its own, and with the laptop's tenants and tokens.

    The models that Ollama answers in the stand-in's place have a window that fits into a laptop.
    """
    file: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    for model in file.get("models") or ():
        if model["name"] in choice.substitutes:
            model["context_window"] = min(model["context_window"], ollama.STAND_IN_WINDOW)
    file["llm"] = {**file.get("llm", {}), "backends": [_dump_backend(backend) for backend in choice.backends]}
    operators = {tenant["id"]: tenant for tenant in file.get("tenants") or []}
    used_digests = {token.sha256 for tenant in config.tenants for token in tenant.tokens}
    local = [_merge_tenant(operators.get(name, {"id": name}), tokens, used_digests) for name, tokens in TOKENS.items()]
    file["tenants"] = [*local, *(tenant for name, tenant in operators.items() if name not in TOKENS)]
    return file


def _missing_reason(backend: BackendConfig, config: GatewayConfig, servers: ollama.Servers, *, offline: bool) -> str | None:
    """Return why a backend cannot answer here, or None if it can: its key is set, or it needs no key and answers. Bedrock needs a
    key here: without one it uses AWS credentials, and those of this process belong to the emulator."""
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
        return _missing_ollama(backend, config, servers)
    if key or (backend.base_url is not None and answers(backend.base_url, timeout=_PROBE_SECONDS)):
        return None
    return "no answer at its base_url"


def _missing_ollama(backend: BackendConfig, config: GatewayConfig, servers: ollama.Servers) -> str | None:
    if ollama.address(backend) not in servers:
        return f"no Ollama answers at {ollama.address(backend)}"
    if ollama.narrow(backend, config, servers).supported_models:
        return None
    missing = ollama.missing(backend, config, servers)
    pulls = " and ".join(f"`ollama pull {name}`" for name in missing)
    return (
        f"{ollama.address(backend)} lacks {', '.join(missing)}: run {pulls}" if missing else "the catalogue has no model for it"
    )


def _standin_backend(url: str, models: Sequence[str]) -> BackendConfig:
    return BackendConfig(
        name=STANDIN, provider="openai", api_key_env=STANDIN_KEY, base_url=url, supported_models=tuple(models), timeout=30
    )


def _dump_backend(backend: BackendConfig) -> dict[str, Any]:
    return backend.model_dump(mode="json", exclude_unset=True) | {"name": backend.name, "provider": backend.provider}


def _merge_tenant(operators: Mapping[str, Any], tokens: Mapping[str, bool], used_digests: Collection[str]) -> dict[str, Any]:
    """Return the operator's tenant with ``tokens`` added to its own. Omit those whose SHA-256 the operator's file already has
    (``used_digests``)."""
    merged = list(operators.get("tokens") or ())
    for token, admin in tokens.items():
        name, digest = token.removesuffix("-token"), hashlib.sha256(token.encode()).hexdigest()
        while name in {other["id"] for other in merged}:
            name += "-local"
        if digest not in used_digests:
            merged.append({"id": name, "sha256": digest, "admin": admin})
    return {**operators, "tokens": merged}
