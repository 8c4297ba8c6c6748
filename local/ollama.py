"""Find the Ollama servers of ``gateway.yaml``, or the one on this machine: their addresses and their models."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import httpx

from spass.models.backends import key_variable, serves
from spass.tenancy.config import BackendConfig, GatewayConfig

PROVIDER: Final = "ollama"
STAND_IN: Final = "SPASS_OLLAMA_MODEL"
STAND_IN_WINDOW: Final = 16_384
"""Tokens. Ollama reserves memory for the whole window, and that of a cloud's model would not fit into a laptop."""

_DEFAULT_ADDRESS: Final = "http://localhost:11434"
_PROBE_SECONDS: Final = 0.5
_EMBEDDING_NAME: Final = re.compile(r"embed|minilm|bge|e5-", re.IGNORECASE)

Servers: TypeAlias = Mapping[str, Sequence[str]]
"""Maps the address of each Ollama server that answers to the names of its models."""


def backends(config: GatewayConfig) -> tuple[BackendConfig, ...]:
    """Return the backends of Ollama that ``config`` names, or one for the Ollama that may run here if it names none."""
    named = tuple(backend for backend in config.llm.backends if backend.provider == PROVIDER)
    is_taken = any(backend.name == PROVIDER for backend in config.llm.backends)
    return named or (BackendConfig(name="ollama-here" if is_taken else PROVIDER, provider=PROVIDER),)


def address(backend: BackendConfig) -> str:
    """Return the address of ``backend``: its ``base_url``, ``OLLAMA_BASE_URL``, or Ollama's default port on this machine."""
    url = backend.base_url or os.environ.get("OLLAMA_BASE_URL") or _DEFAULT_ADDRESS
    return url.rstrip("/").removesuffix("/v1")


def find_servers(config: GatewayConfig) -> Servers:
    """Request the models of each Ollama server. Omit servers that do not answer or whose key is not set."""
    servers: dict[str, Sequence[str]] = {}
    for backend in backends(config):
        variable = key_variable(backend)
        key = os.environ.get(variable) if variable else None
        installed = _list_models(address(backend), key) if key or not variable else None
        if installed is not None:
            servers[address(backend)] = installed
    return servers


def narrow(backend: BackendConfig, config: GatewayConfig, servers: Servers) -> BackendConfig:
    """Return ``backend`` with only the models that it may serve and that its Ollama has, perhaps none."""
    installed = servers[address(backend)]
    names = {
        model: name
        for model, ollama_name in _ollama_names(backend, config).items()
        if (name := _match_name(installed, ollama_name))
    }
    return _serving(backend, names)


def missing(backend: BackendConfig, config: GatewayConfig, servers: Servers) -> list[str]:
    """Return Ollama's names of the models that ``backend`` should serve but its Ollama does not have."""
    installed = servers[address(backend)]
    return [name for name in _ollama_names(backend, config).values() if not _match_name(installed, name)]


def stand_in(config: GatewayConfig, servers: Servers) -> tuple[BackendConfig, str] | None:
    """Return the backend that has the model named in ``SPASS_OLLAMA_MODEL``, and that model. Return None if there is none."""
    model = os.environ.get(STAND_IN)
    for backend in sorted(backends(config), key=lambda backend: backend.priority):
        if model and (name := _match_name(servers.get(address(backend), ()), model)):
            return backend, name
    return None


def stand_in_problem(config: GatewayConfig, servers: Servers) -> str | None:
    """Return why no Ollama answers with the model named in ``SPASS_OLLAMA_MODEL``, or None if it names no model."""
    model = os.environ.get(STAND_IN)
    if not model:
        return None
    if servers:
        reason = f"Ollama at {' and '.join(servers)} has no model {model}"
    else:
        reason = f"no Ollama answers at {' or '.join(dict.fromkeys(map(address, backends(config))))}"
    return f"{STAND_IN}={model} has no effect: {reason}"


def extend(backend: BackendConfig, models: Iterable[str], name: str) -> BackendConfig:
    """Return ``backend`` with Ollama's model ``name`` as the answer for ``models`` too."""
    return _serving(backend, backend.model_names | dict.fromkeys(models, name))


def chat_models(servers: Servers) -> list[str]:
    """Return the models of all servers, without those that embed."""
    return [name for names in servers.values() for name in names if not _EMBEDDING_NAME.search(name)]


def _serving(backend: BackendConfig, names: Mapping[str, str]) -> BackendConfig:
    update = {"base_url": address(backend), "supported_models": tuple(names), "model_names": dict(names)}
    return backend.model_copy(update=update)


def _ollama_names(backend: BackendConfig, config: GatewayConfig) -> dict[str, str]:
    """Return the catalogue's models that ``backend`` should serve, each with Ollama's name for it.

    A backend of the file serves the same models as in AWS, also those that another backend lists: ``llm.strategy`` decides. An
    Ollama that the file does not name serves only the models that no backend lists.
    """
    listed: set[str] = set()
    if backend not in config.llm.backends:
        listed.update(model for one in config.llm.backends for model in (*one.supported_models, *one.model_names))
    return {
        model.name: backend.model_names.get(model.name, model.name)
        for model in config.models
        if serves(backend, model.name) and model.name not in listed
    }


def _match_name(installed: Iterable[str], name: str) -> str | None:
    """Return the installed model ``name``, with its tag, or None."""
    return next((model for model in installed if model in (name, f"{name}:latest")), None)


def _list_models(url: str, key: str | None) -> tuple[str, ...] | None:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        tags = httpx.get(f"{url}/api/tags", headers=headers, timeout=_PROBE_SECONDS, trust_env=False)
        return tuple(str(model["name"]) for model in tags.raise_for_status().json()["models"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
